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
    parts.push_back(run_over_pieces(halos, next + 1, padded_rows(fetched, halos[next], piece), run));
  }
  return joined(parts, dim);
}

// Rows of zeros around a piece of the result's gradient, and the padding of a convolution of the piece of the input
// whose windows are the rows of both.
struct Surroundings {
  std::int64_t before, after, padding;
};

Surroundings surroundings_of(const LocalArgs& args, const HaloExchange& exchange, const Piece& piece) {
  if (piece.length == 0) return {0, 0, 0};
  const auto i = static_cast<std::size_t>(exchange.dim() - 2);
  const auto stride = number_at(args, "stride", i);
  const auto span = number_at(args, "dilation", i) * (args.tensor("weight").size(exchange.dim()) - 1) + 1;
  // How far the first window reaches beyond the first input row, and the last window beyond the last row.
  const auto first = piece.row - (piece.begin * stride - number_at(args, "padding", i));
  const auto last = (piece.length - 1) * stride + span - first - piece.rows;
  const auto missing = std::max<std::int64_t>(last, 0) - first;
  const auto before = missing > 0 ? (missing + stride - 1) / stride : 0, padding = first + before * stride;
  const auto windows = (piece.rows + 2 * padding - span) / stride + 1;
  return {before, windows - before - piece.length, padding};
}

at::Tensor fetch_gradient(const LocalArgs& args, const HaloExchanges& halos, const at::Tensor& grad) {
  std::vector<HaloExchange::Margin> margins;
  for (const auto& exchange : halos) {
    if (exchange.pieces().size() != 1) continue;
    const auto around = surroundings_of(args, exchange, exchange.pieces()[0]);
    margins.push_back({exchange.dim(), around.before, around.after});
  }
  return fetch_halo(halos, grad, margins, 0);
}

// The gradient of a piece of the input, undefined if it is not requested.
using GradientOfPiece = std::function<at::Tensor(const at::Tensor& input, const at::Tensor& grad,
                                                 const std::vector<std::int64_t>& padding)>;

// Calls `run` for each piece of the input rows with the result's gradients of the windows that reach them, and joins
// the gradients of the pieces.
at::Tensor run_backward_over_pieces(const LocalArgs& args, const HaloExchanges& halos, std::size_t next,
                                    const at::Tensor& input, const at::Tensor& fetched,
                                    std::vector<std::int64_t> padding, const GradientOfPiece& run) {
  if (next == halos.size()) return run(input, fetched, padding);
  const auto dim = halos[next].dim();
  std::vector<at::Tensor> parts;
  for (const Piece& piece : halos[next].pieces()) {
    const auto rows = input.narrow(dim, piece.first, piece.rows);
    if (piece.length == 0) {  // no window reaches these rows
      parts.push_back(at::zeros(rows.sizes(), rows.options()));
      continue;
    }
    const auto [before, after, reach] = surroundings_of(args, halos[next], piece);
    padding[static_cast<std::size_t>(dim - 2)] = reach;
    const bool padded = halos[next].pieces().size() == 1;
    const auto grad = padded ? fetched : resized(fetched.narrow(dim, piece.from, piece.length), dim, before, after);
    parts.push_back(run_backward_over_pieces(args, halos, next + 1, rows, grad, padding, run));
    if (!parts.back().defined()) parts.pop_back();
  }
  return parts.empty() ? at::Tensor() : joined(parts, dim);
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
  at::Tensor result;
  if (c10::multiply_integers(call.outputs[0]->local_sizes) == 0 || args.tensor("weight").numel() == 0) {
    result = zeros_of(call, call.outputs[0]);
  } else {
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
  const auto fetched = fetch_gradient(args, halos, grad);
  const at::Tensor of_weight = zeros_of(call, call.outputs[1]);
  at::Tensor of_input;
  if (input.numel() == 0 || fetched.numel() == 0 || args.tensor("weight").numel() == 0) {
    of_input = zeros_of(call, call.outputs[0]);
  } else {
    Stack stack = convolution_piece_arguments(call, args, halos, groups);
    stack[index_of(call, "bias_sizes")] = c10::IValue();
    stack[index_of(call, "output_mask")] = std::vector<bool>{call.outputs[0] != nullptr, of_weight.defined(), false};
    const auto run = [&](const at::Tensor& rows, const at::Tensor& of_rows, const std::vector<std::int64_t>& padding) {
      stack[index_of(call, "padding")] = padding;
      const Stack piece = run_piece(call, stack, {{"grad_output", of_rows}, {"input", rows}});
      if (of_weight.defined()) of_weight.add_(piece[1].toTensor());
      return piece[0].toTensor();
    };
    const auto padding = stack[index_of(call, "padding")].toIntVector();
    of_input = run_backward_over_pieces(args, halos, 0, input, fetched, padding, run);
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
