// Reductions of segments, whose places the values of one operand say.
#include "ops/local_kernels/local_args.h"

namespace dtensor {
namespace {

// ATen's kernels read as many rows as the lengths or offsets say, whether the data has them or not.
void segments(LocalCall& call) {
  const LocalArgs args(call);
  const at::Tensor data = args.tensor("data"), lengths = args.tensor("lengths"), offsets = args.tensor("offsets");
  const bool by_length = !offsets.defined();
  const at::Tensor& counts = by_length ? lengths : offsets;
  if (data.is_cpu() && counts.numel() > 0) {
    const auto size = data.size(args.integer("axis"));
    const auto last = (by_length ? lengths.sum(-1) : offsets).max().item<std::int64_t>();
    TORCH_CHECK(counts.min().item<std::int64_t>() >= 0 && last <= size,
                by_length ? "lengths add up to " : "offsets reach ", last, " of ", size, " rows, or are negative");
  }
  set_results(call, run_aten_operator(call));
}

}  // namespace

void add_segment_kernels(LocalKernels& kernels) { kernels.emplace("segments", segments); }

}  // namespace dtensor
