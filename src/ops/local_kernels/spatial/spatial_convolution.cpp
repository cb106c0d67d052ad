// Convolutions with sharded spatial dimensions. Each rank fetches the input rows that its shard of the result depends
// on and runs the ATen operator on them. In backward it fetches the gradients of the windows that reach its input rows,
// so neither input rows nor gradients of other ranks' rows are sent.
#include "ops/local_kernels/spatial/spatial_convolution.h"

#include <c10/core/WrapDimMinimal.h>

#include "ops/local_kernels/exchanged_pieces.h"

namespace dtensor {
namespace {

using Stack = torch::jit::Stack;

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

// The rows of the result's gradient whose windows reach a piece of the input, with rows of zeros around them.
RowsOfPiece gradient_rows(const LocalArgs& args) {
  return [&args](const at::Tensor& fetched, const HaloExchange& exchange, const Piece& piece) {
    if (exchange.pieces().size() == 1) return fetched;
    const auto around = surroundings_of(args, exchange, piece);
    const auto rows = fetched.narrow(exchange.dim(), piece.from, piece.length);
    return resized(rows, exchange.dim(), around.before, around.after);
  };
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
    const Stack stack = convolution_piece_arguments(call, args, halos, groups);
    if (!has_one_piece(halos)) result = empty_of(call, call.outputs[0]);
    for_each_piece(halos, {result}, fetched, [&](const auto& parts, const at::Tensor& input, const auto&) {
      const auto piece = run_piece(call, stack, {{"input", input}}).back().toTensor();
      parts[0].defined() ? parts[0].copy_(piece) : result = piece;
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
    auto padding = stack[index_of(call, "padding")].toIntVector();
    if (!has_one_piece(halos)) of_input = zeros_of(call, call.outputs[0]);
    const auto run = [&](const auto& parts, const at::Tensor& of_rows, const std::vector<Piece>& pieces) {
      if (of_rows.numel() == 0) return;  // no window reaches these rows
      for (std::size_t k = 0; k < pieces.size(); ++k) {
        padding[static_cast<std::size_t>(halos[k].dim() - 2)] = surroundings_of(args, halos[k], pieces[k]).padding;
      }
      stack[index_of(call, "padding")] = padding;
      const Stack piece = run_piece(call, stack, {{"grad_output", of_rows}, {"input", parts[0]}});
      if (of_weight.defined()) of_weight.add_(piece[1].toTensor());
      const auto of_part = piece[0].toTensor();
      parts[1].defined() ? parts[1].copy_(of_part) : of_input = of_part;
    };
    for_each_piece(halos, {input, of_input}, fetched, run, gradient_rows(args));
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
