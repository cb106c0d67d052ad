// Reductions of segments, whose places the values of one operand say.
#include "ops/handlers/local_args.h"

namespace dtensor {
namespace {

// ATen's kernel reads as many rows as the lengths say, whether the data has them or not.
void segment_reduce_backward(LocalCall& call) {
  const LocalArgs args(call);
  const at::Tensor data = args.tensor("data"), lengths = args.tensor("lengths"), offsets = args.tensor("offsets");
  const at::Tensor ends = lengths.defined() ? lengths.sum(-1) : offsets;
  const at::Tensor& counts = lengths.defined() ? lengths : offsets;
  if (data.is_cpu() && counts.numel() > 0) {
    const auto size = data.size(args.integer("axis")), last = ends.max().item<std::int64_t>();
    TORCH_CHECK(counts.min().item<std::int64_t>() >= 0 && last <= size,
                "the gradient of segment_reduce: ", lengths.defined() ? "lengths add up to " : "offsets reach ", last,
                " of ", size, " rows, or are negative");
  }
  give(call, run_plain(call));
}

}  // namespace

void add_segment_kernels(LocalKernels& kernels) { kernels.emplace("segment_reduce_backward", segment_reduce_backward); }

}  // namespace dtensor
