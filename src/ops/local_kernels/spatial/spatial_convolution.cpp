// Convolutions with sharded spatial dimensions. Each rank fetches the input rows that its shard of the result depends
// on and runs the ATen operator on them. In backward it fetches the gradients of the windows that reach its input rows,
// so neither input rows nor gradients of other ranks' rows are sent.
#include "ops/local_kernels/spatial/spatial_convolution.h"

#include <c10/core/WrapDimMinimal.h>

#include <functional>

#include "ops/local_kernels/exchanged_pieces.h"

namespace dtensor {
namespace {

using Stack = torch::jit::Stack;

// Calls `run` on the input rows of each piece of the result, for exchanges from `next` on.
at::Tensor run_over_pieces(const HaloExchanges& halos, std::size_t next, const at::Tensor& fetched,
                           const std::function<at::Tensor(const at::Tensor&)>& run) {
  if (next == halos.size()) return run(fetched);
  std::vector<at::Tensor> parts;
  const auto dim = halos[next].dim();
  for (const Piece& piece : halos[next].pieces()) {
    parts.push_back(run_over_pieces(halos, next + 1, padded_rows(fetched, dim, piece), run));
  }
  return joined(parts, dim);
}

// This rank's input rows and their gradient (undefined if it is not requested).
struct Rows {
  at::Tensor input, gradient;
};

// Calls `run` for each piece of the input rows, with the result's gradients of the windows that reach them, from
// `fetched`. The piece of the input is padded or cropped to the rows of these windows.
void run_backward_over_pieces(const LocalArgs& args, const HaloExchanges& halos, std::size_t next, const Rows& rows,
                              const at::Tensor& fetched,
                              const std::function<at::Tensor(const at::Tensor& grad, const Rows& rows)>& run) {
  if (next == halos.size()) {
    if (const auto gradient = run(fetched, rows); gradient.defined()) rows.gradient.copy_(gradient);
    return;
  }
  const auto dim = halos[next].dim();
  const auto i = static_cast<std::size_t>(dim - 2);
  const auto stride = number_at(args, "stride", i);
  const auto span = number_at(args, "dilation", i) * (args.tensor("weight").size(dim) - 1) + 1;
  for (const Piece& piece : halos[next].pieces()) {
    if (piece.length == 0) continue;
    const auto begin = piece.begin * stride - number_at(args, "padding", i);
    const auto before = piece.row - begin, after = (piece.length - 1) * stride + span - before - piece.rows;
    const Rows part{rows.input.narrow(dim, piece.first, piece.rows),
                    rows.gradient.defined() ? rows.gradient.narrow(dim, piece.first, piece.rows) : at::Tensor()};
    run_backward_over_pieces(args, halos, next + 1, {resized(part.input, dim, before, after), part.gradient},
                             fetched.narrow(dim, piece.from, piece.length),
                             [&](const at::Tensor& grad, const Rows& inner) {
                               const auto gradient = run(grad, inner);
                               return gradient.defined() ? resized(gradient, dim, -before, -after) : gradient;
                             });
  }
}

std::vector<std::int64_t> spatial_dims_of(const TensorSpec& spec) {
  std::vector<std::int64_t> spatial_dims;
  for (std::int64_t d = 2; d < std::ssize(spec.sizes); ++d) spatial_dims.push_back(d);
  return spatial_dims;
}

}  // namespace

bool shards_spatial_dims(const TensorSpec* input) {
  return input != nullptr && shard_axes(input, spatial_dims_of(*input)) != 0;
}

void convolve_sharded_spatial(LocalCall& call, std::int64_t groups) {
  const LocalArgs args(call);
  const auto halos = halo_exchanges_of_convolution(call, args, *args.spec("input"), *call.outputs[0]);
  const auto fetched = fetch_halo(halos, args.tensor("input"));
  auto result = zeros_of(call, call.outputs[0]);
  if (result.numel() > 0 && args.tensor("weight").numel() > 0) {
    Stack stack = convolution_piece_arguments(call, args, halos, groups);
    result = run_over_pieces(halos, 0, fetched, [&](const at::Tensor& input) {
      return run_piece(call, stack, {{"input", input}}).back().toTensor();
    });
  }
  set_results(call, {result});
}

void convolve_sharded_spatial_backward(LocalCall& call, std::int64_t groups) {
  const LocalArgs args(call);
  const auto grad = args.tensor("grad_output"), input = args.tensor("input");
  const auto halos = halo_exchanges_of_convolution(call, args, *args.spec("grad_output"), *args.spec("input"),
                                                   /*transposed=*/true);
  const auto fetched = fetch_halo(halos, grad);
  const at::Tensor of_input = zeros_of(call, call.outputs[0]), of_weight = zeros_of(call, call.outputs[1]);
  if (input.numel() > 0 && fetched.numel() > 0 && args.tensor("weight").numel() > 0) {
    Stack stack = convolution_piece_arguments(call, args, halos, groups);
    stack[index_of(call, "bias_sizes")] = c10::IValue();
    stack[index_of(call, "output_mask")] = std::vector<bool>{of_input.defined(), of_weight.defined(), false};
    run_backward_over_pieces(
        args, halos, 0, {input, of_input}, fetched, [&](const at::Tensor& of_rows, const Rows& rows) {
          const Stack piece = run_piece(call, stack, {{"grad_output", of_rows}, {"input", rows.input}});
          if (of_weight.defined()) of_weight.add_(piece[1].toTensor());
          return piece[0].toTensor();
        });
  }
  set_results(call, {of_input, of_weight, call.outputs[2] ? sum_but_channels(grad) : at::Tensor()});
}

void pad_split(LocalCall& call) {
  const LocalArgs args(call);
  auto amounts = args.value("pad").toIntVector();
  const auto value = args.value("value").toScalar();
  const auto* spec = args.spec("self");
  auto local = args.tensor("self");
  for (std::size_t i = 0; 2 * i < amounts.size(); ++i) {
    const auto dim = local.dim() - 1 - static_cast<std::int64_t>(i);
    if (shard_axes(spec, dim) == 0 || (amounts[2 * i] == 0 && amounts[2 * i + 1] == 0)) continue;
    const HaloExchange rows(call.mesh, *spec, *call.outputs[0], dim, {.before = amounts[2 * i]});
    const auto fetched = rows.fetch_halo(local);
    std::vector<at::Tensor> parts;
    for (const Piece& piece : rows.pieces()) parts.push_back(padded_rows(fetched, dim, piece, value));
    local = parts.empty() ? fetched.narrow(dim, 0, 0) : joined(parts, dim);
    amounts[2 * i] = amounts[2 * i + 1] = 0;
  }
  set_results(call, {at::constant_pad_nd(local, amounts, value)});
}

void flip_split(LocalCall& call) {
  const LocalArgs args(call);
  const auto* spec = args.spec("self");
  auto local = args.tensor("self");
  auto dims = args.value("dims").toIntVector();
  for (auto& dim : dims) {
    dim = c10::maybe_wrap_dim(dim, local.dim());
    if (shard_axes(spec, dim) == 0) continue;
    local = HaloExchange(call.mesh, *spec, *call.outputs[0], dim, {.mirrored = true}).fetch_halo(local);
  }
  set_results(call, {local.flip(dims)});
}

}  // namespace dtensor
