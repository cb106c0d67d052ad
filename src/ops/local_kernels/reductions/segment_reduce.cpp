// segment_reduce: reductions of segments that the operand `lengths` or `offsets` defines.
#include "ops/local_kernels/local_args.h"

namespace dtensor {
namespace {

// Checks lengths and offsets, because ATen's kernels read the data without bounds checks.
void segments(LocalCall& call) {
  const LocalArgs args(call);
  const at::Tensor data = args.tensor("data"), lengths = args.tensor("lengths"), offsets = args.tensor("offsets");
  const bool by_length = !offsets.defined();
  const at::Tensor& counts = by_length ? lengths : offsets;
  if (data.is_cpu() && counts.numel() > 0) {
    const auto size = data.size(args.integer("axis"));
    const auto last = (by_length ? lengths.sum(-1) : offsets).max().item<std::int64_t>();
    TORCH_CHECK(counts.min().item<std::int64_t>() >= 0 && last <= size,
                by_length ? "expected non-negative lengths that sum to at most the number of rows, got a sum of "
                          : "expected non-negative offsets of at most the number of rows, got up to ",
                last, " for ", size, " rows");
  }
  set_results(call, run_aten_operator(call));
}

}  // namespace

void add_segment_kernels(LocalKernels& kernels) { kernels.emplace("segments", segments); }

}  // namespace dtensor
