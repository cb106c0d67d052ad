// Transposed convolutions with sharded spatial dimensions. A rank's rows of the result depend on its own input rows and
// a few rows of its neighbors. The gradient of the input is a convolution, whose windows read rows of the result's
// gradient.
#include "ops/local_kernels/exchanged_pieces.h"
#include "ops/local_kernels/spatial/spatial_convolution.h"

namespace dtensor {
namespace {

using Stack = torch::jit::Stack;

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
    for_each_piece(halos, {result}, fetched, [&](const auto& parts, const at::Tensor& rows, const auto& pieces) {
      if (rows.numel() == 0) return;
      std::vector<std::pair<std::int64_t, std::int64_t>> offsets;
      for (const Piece& piece : pieces) {
        const auto dim = halos[offsets.size()].dim();
        const auto i = static_cast<std::size_t>(dim - 2);
        offsets.emplace_back(dim,
                             piece.begin * number_at(args, "stride", i) - number_at(args, "padding", i) - piece.row);
      }
      write_common(parts[0], run_piece(call, stack, {{"input", rows}}).back().toTensor(), offsets);
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
  const std::vector<at::Tensor> results{zeros_of(call, call.outputs[0]), zeros_of(call, call.outputs[1]),
                                        call.outputs[2] ? sum_but_channels(grad) : at::Tensor()};
  if (input.numel() > 0 && args.tensor("weight").numel() > 0) {
    Stack stack = convolution_piece_arguments(call, args, halos, groups);
    stack[index_of(call, "bias_sizes")] = c10::IValue();
    stack[index_of(call, "output_mask")] = std::vector<bool>{results[0].defined(), results[1].defined(), false};
    for_each_piece(halos, {input, results[0]}, fetched, [&](const auto& parts, const at::Tensor& of_rows, const auto&) {
      const Stack piece = run_piece(call, stack, {{"grad_output", of_rows}, {"input", parts[0]}});
      if (parts[1].defined()) parts[1].copy_(piece[0].toTensor());
      if (results[1].defined()) results[1].add_(piece[1].toTensor());
    });
  }
  set_results(call, results);
}

}  // namespace dtensor
