// Convolutions whose places are split: each rank brings the rows that its own part of the result looks at, runs the
// plain operator on them, and in backward returns what it found for rows of others.
#include "ops/handlers/split_places.h"

#include <c10/core/WrapDimMinimal.h>

#include <functional>

#include "ops/handlers/pieces.h"

namespace dtensor {
namespace {

using Stack = torch::jit::Stack;

// `run` on what each piece of the result looks at, from place `next` on.
at::Tensor over_pieces(const Exchanges& places, std::size_t next, const at::Tensor& fetched,
                       const std::function<at::Tensor(const at::Tensor&)>& run) {
  if (next == places.size()) return run(fetched);
  std::vector<at::Tensor> parts;
  const auto dim = places[next].dim();
  for (const Piece& piece : places[next].pieces()) {
    parts.push_back(over_pieces(places, next + 1, looked_at(fetched, dim, piece), run));
  }
  return joined(parts, dim);
}

// The sums of a backward over all pieces.
struct Gradients {
  at::Tensor weight, bias;

  void add(const at::Tensor& of_weight, const at::Tensor& of_bias) {
    if (of_weight.defined()) weight = weight.defined() ? weight.add_(of_weight) : of_weight;
    if (of_bias.defined()) bias = bias.defined() ? bias.add_(of_bias) : of_bias;
  }
};

// The gradient of the fetched rows; undefined where it is not asked for.
at::Tensor backward_over_pieces(const Exchanges& places, std::size_t next, const at::Tensor& grad,
                                const at::Tensor& fetched,
                                const std::function<at::Tensor(const at::Tensor& grad, const at::Tensor& input)>& run) {
  if (next == places.size()) return run(grad, fetched);
  at::Tensor sum;
  const auto dim = places[next].dim();
  for (const Piece& piece : places[next].pieces()) {
    const auto part = backward_over_pieces(places, next + 1, grad.narrow(dim, piece.first, piece.rows),
                                           looked_at(fetched, dim, piece), run);
    if (!part.defined()) continue;
    if (!sum.defined()) sum = at::zeros_like(fetched);
    sum.narrow(dim, piece.from, piece.length).add_(part.narrow(dim, piece.before, piece.length));
  }
  return sum;
}

std::vector<std::int64_t> places_of(const TensorSpec& spec) {
  std::vector<std::int64_t> places;
  for (std::int64_t d = 2; d < std::ssize(spec.sizes); ++d) places.push_back(d);
  return places;
}

// Of the fetched rows, none where this rank has none to compute.
at::Tensor zeros_like_fetched(const at::Tensor& fetched, const TensorSpec& gradient) {
  return at::zeros(fetched.sizes(), fetched.options().dtype(gradient.dtype));
}

}  // namespace

bool splits_places(const TensorSpec* input) { return input != nullptr && shard_axes(input, places_of(*input)) != 0; }

void convolve_split_places(LocalCall& call, std::int64_t groups) {
  const LocalArgs args(call);
  const auto places = exchanges_of_convolution(call, args, *args.spec("input"), *call.outputs[0]);
  const auto fetched = fetch(places, args.tensor("input"));
  auto result = zeros_of(call, call.outputs[0]);
  if (result.numel() > 0 && args.tensor("weight").numel() > 0) {
    Stack stack = arguments_of_convolution(call, args, places, groups);
    result = over_pieces(places, 0, fetched, [&](const at::Tensor& input) {
      Stack piece = stack;
      piece[index_of(call, "input")] = input;
      run_piece(call, piece);
      return piece.back().toTensor();
    });
  }
  give(call, {result});
}

void convolve_split_places_backward(LocalCall& call, std::int64_t groups) {
  const LocalArgs args(call);
  const auto grad = args.tensor("grad_output"), weight = args.tensor("weight");
  const auto places = exchanges_of_convolution(call, args, *args.spec("input"), *args.spec("grad_output"));
  const auto fetched = fetch(places, args.tensor("input"));
  Gradients sums{zeros_of(call, call.outputs[1]), zeros_of(call, call.outputs[2])};
  at::Tensor shares;
  if (grad.numel() > 0 && weight.numel() > 0) {
    Stack stack = arguments_of_convolution(call, args, places, groups);
    if (!args.value("bias_sizes").isNone()) stack[index_of(call, "bias_sizes")] = std::vector{grad.size(1)};
    shares = backward_over_pieces(places, 0, grad, fetched, [&](const at::Tensor& of_rows, const at::Tensor& input) {
      Stack piece = stack;
      piece[index_of(call, "grad_output")] = of_rows;
      piece[index_of(call, "input")] = input;
      run_piece(call, piece);
      sums.add(piece[1].toTensor(), piece[2].toTensor());
      return piece[0].toTensor();
    });
  }
  if (call.outputs[0]) {
    shares = give_back(places, shares.defined() ? shares : zeros_like_fetched(fetched, *call.outputs[0]));
  }
  give(call, {call.outputs[0] ? shares : at::Tensor(), sums.weight, sums.bias});
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
    const WindowExchange rows(call.mesh, *spec, *call.outputs[0], dim, {.before = amounts[2 * i]});
    const auto fetched = rows.fetch(local);
    std::vector<at::Tensor> parts;
    for (const Piece& piece : rows.pieces()) parts.push_back(looked_at(fetched, dim, piece, value));
    local = parts.empty() ? fetched.narrow(dim, 0, 0) : joined(parts, dim);
    amounts[2 * i] = amounts[2 * i + 1] = 0;
  }
  give(call, {at::constant_pad_nd(local, amounts, value)});
}

void flip_split(LocalCall& call) {
  const LocalArgs args(call);
  const auto* spec = args.spec("self");
  auto local = args.tensor("self");
  auto dims = args.value("dims").toIntVector();
  for (auto& dim : dims) {
    dim = c10::maybe_wrap_dim(dim, local.dim());
    if (shard_axes(spec, dim) == 0) continue;
    local = WindowExchange(call.mesh, *spec, *call.outputs[0], dim, {.mirrored = true}).fetch(local);
  }
  give(call, {local.flip(dims)});
}

}  // namespace dtensor
