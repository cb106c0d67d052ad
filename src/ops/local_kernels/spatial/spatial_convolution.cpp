// Convolutions with sharded spatial dimensions. Each rank fetches the input rows that its shard of the result depends
// on and runs the ATen operator on them. In backward it sends the gradients of fetched rows back to their owners.
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

// The gradients of weight and bias, summed over all pieces.
struct Gradients {
  at::Tensor weight, bias;

  void add(const at::Tensor& of_weight, const at::Tensor& of_bias) {
    if (of_weight.defined()) weight = weight.defined() ? weight.add_(of_weight) : of_weight;
    if (of_bias.defined()) bias = bias.defined() ? bias.add_(of_bias) : of_bias;
  }
};

// The gradient of the fetched rows; undefined if it is not requested.
at::Tensor run_backward_over_pieces(
    const HaloExchanges& halos, std::size_t next, const at::Tensor& grad, const at::Tensor& fetched,
    const std::function<at::Tensor(const at::Tensor& grad, const at::Tensor& input)>& run) {
  if (next == halos.size()) return run(grad, fetched);
  at::Tensor sum;
  const auto dim = halos[next].dim();
  for (const Piece& piece : halos[next].pieces()) {
    const auto part = run_backward_over_pieces(halos, next + 1, grad.narrow(dim, piece.first, piece.rows),
                                               padded_rows(fetched, dim, piece), run);
    if (!part.defined()) continue;
    if (!sum.defined()) sum = at::zeros_like(fetched);
    sum.narrow(dim, piece.from, piece.length).add_(part.narrow(dim, piece.before, piece.length));
  }
  return sum;
}

std::vector<std::int64_t> spatial_dims_of(const TensorSpec& spec) {
  std::vector<std::int64_t> spatial_dims;
  for (std::int64_t d = 2; d < std::ssize(spec.sizes); ++d) spatial_dims.push_back(d);
  return spatial_dims;
}

// A zero gradient of the fetched rows, for a rank with nothing to compute.
at::Tensor zeros_like_fetched(const at::Tensor& fetched, const TensorSpec& gradient) {
  return at::zeros(fetched.sizes(), fetched.options().dtype(gradient.dtype));
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
  const auto grad = args.tensor("grad_output"), weight = args.tensor("weight");
  const auto halos = halo_exchanges_of_convolution(call, args, *args.spec("input"), *args.spec("grad_output"));
  const auto fetched = fetch_halo(halos, args.tensor("input"));
  Gradients sums{zeros_of(call, call.outputs[1]), zeros_of(call, call.outputs[2])};
  at::Tensor shares;
  if (grad.numel() > 0 && weight.numel() > 0) {
    Stack stack = convolution_piece_arguments(call, args, halos, groups);
    if (!args.value("bias_sizes").isNone()) stack[index_of(call, "bias_sizes")] = std::vector{grad.size(1)};
    shares = run_backward_over_pieces(halos, 0, grad, fetched, [&](const at::Tensor& of_rows, const at::Tensor& input) {
      const Stack piece = run_piece(call, stack, {{"grad_output", of_rows}, {"input", input}});
      sums.add(piece[1].toTensor(), piece[2].toTensor());
      return piece[0].toTensor();
    });
  }
  if (call.outputs[0]) {
    shares = reduce_halo(halos, shares.defined() ? shares : zeros_like_fetched(fetched, *call.outputs[0]));
  }
  set_results(call, {call.outputs[0] ? shares : at::Tensor(), sums.weight, sums.bias});
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
