// Transposed convolutions with sharded spatial dimensions. A rank's rows of the result depend on its own input rows and
// a few rows of its neighbors. The gradient of the input is a convolution, whose windows read rows of the result's
// gradient.
#include <functional>

#include "ops/local_kernels/exchanged_pieces.h"
#include "ops/local_kernels/spatial/spatial_convolution.h"

namespace dtensor {
namespace {

using Stack = torch::jit::Stack;
using Tensors = std::vector<at::Tensor>;

// Copies the overlap of `found` and `out`, where row 0 of `found` is row `offset` of `out`.
void write_common(at::Tensor out, at::Tensor found, const std::vector<std::pair<std::int64_t, std::int64_t>>& offsets) {
  for (const auto& [dim, offset] : offsets) {
    const auto first = std::max<std::int64_t>(offset, 0), last = std::min(out.size(dim), offset + found.size(dim));
    if (last <= first) return;
    out = out.narrow(dim, first, last - first);
    found = found.narrow(dim, first - offset, last - first);
  }
  out.copy_(found);
}

using Offsets = std::vector<std::pair<std::int64_t, std::int64_t>>;

// Calls `run` on the rows that each piece of `out` reads, and copies its result to the corresponding rows of `out`.
void run_over_pieces(const LocalArgs& args, const HaloExchanges& halos, const at::Tensor& out,
                     const at::Tensor& fetched, const Offsets& offsets,
                     const std::function<at::Tensor(const at::Tensor&)>& run) {
  if (offsets.size() == halos.size()) return write_common(out, run(fetched), offsets);
  const auto& exchange = halos[offsets.size()];
  const auto dim = exchange.dim();
  const auto i = static_cast<std::size_t>(dim - 2);
  for (const Piece& piece : exchange.pieces()) {
    if (piece.length == 0) continue;
    auto inner = offsets;
    inner.emplace_back(dim, piece.begin * number_at(args, "stride", i) - number_at(args, "padding", i) - piece.row);
    run_over_pieces(args, halos, out.narrow(dim, piece.first, piece.rows), padded_rows(fetched, exchange, piece), inner,
                    run);
  }
}

// Calls `run` on each piece of the input and its gradient (the output), and on the gradient of the result.
void run_backward_over_pieces(
    const HaloExchanges& halos, std::size_t next, const Tensors& input_and_gradient, const at::Tensor& fetched,
    const std::function<void(const Tensors& input_and_gradient, const at::Tensor& grad)>& run) {
  if (next == halos.size()) return run(input_and_gradient, fetched);
  const auto dim = halos[next].dim();
  for (const Piece& piece : halos[next].pieces()) {
    Tensors parts;
    for (const auto& t : input_and_gradient) {
      parts.push_back(t.defined() ? t.narrow(dim, piece.first, piece.rows) : t);
    }
    run_backward_over_pieces(halos, next + 1, parts, padded_rows(fetched, halos[next], piece), run);
  }
}

}  // namespace

void conv_transpose_sharded_spatial(LocalCall& call, std::int64_t groups) {
  const LocalArgs args(call);
  const auto halos =
      halo_exchanges_of_convolution(call, args, *args.spec("input"), *call.outputs[0], /*transposed=*/true);
  const auto fetched = fetch_halo(halos, args.tensor("input"));
  const auto bias = args.tensor("bias");
  const auto result = zeros_of(call, call.outputs[0]);
  if (result.numel() > 0 && fetched.numel() > 0 && args.tensor("weight").numel() > 0) {
    Stack stack = convolution_piece_arguments(call, args, halos, groups);
    stack[index_of(call, "bias")] = c10::IValue();
    run_over_pieces(args, halos, result, fetched, {}, [&](const at::Tensor& input) {
      return run_piece(call, stack, {{"input", input}}).back().toTensor();
    });
  }
  if (bias.defined()) {
    std::vector<std::int64_t> sizes(static_cast<std::size_t>(result.dim()), 1);
    sizes[1] = bias.size(0);
    result.add_(bias.view(sizes));
  }
  set_results(call, {result});
}

void conv_transpose_sharded_spatial_backward(LocalCall& call, std::int64_t groups) {
  const LocalArgs args(call);
  const auto grad = args.tensor("grad_output"), input = args.tensor("input");
  const auto halos = halo_exchanges_of_convolution(call, args, *args.spec("grad_output"), *args.spec("input"));
  const auto fetched = fetch_halo(halos, grad);
  const Tensors results{zeros_of(call, call.outputs[0]), zeros_of(call, call.outputs[1]),
                        call.outputs[2] ? sum_but_channels(grad) : at::Tensor()};
  if (input.numel() > 0 && args.tensor("weight").numel() > 0) {
    Stack stack = convolution_piece_arguments(call, args, halos, groups);
    stack[index_of(call, "bias_sizes")] = c10::IValue();
    stack[index_of(call, "output_mask")] = std::vector<bool>{results[0].defined(), results[1].defined(), false};
    run_backward_over_pieces(
        halos, 0, {input, results[0]}, fetched, [&](const Tensors& rows, const at::Tensor& of_rows) {
          const Stack piece = run_piece(call, stack, {{"grad_output", of_rows}, {"input", rows[0]}});
          if (rows[1].defined()) rows[1].copy_(piece[0].toTensor());
          if (results[1].defined()) results[1].add_(piece[1].toTensor());
        });
  }
  set_results(call, results);
}

}  // namespace dtensor
