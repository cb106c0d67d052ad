// select along a sharded dimension. The owner of the entry broadcasts it to the ranks that share the dimension; in
// backward the owner writes the gradient into its shard. The tensor is not gathered.
#include <c10/core/WrapDimMinimal.h>

#include <algorithm>

#include "ops/local_kernels/local_args.h"
#include "redistribute/plan/split_layout.h"
#include "redistribute/regions/part_views.h"

namespace dtensor {
namespace {

bool holds(const Segments& segments, std::int64_t index) {
  return intersection_size(segments, {Segment{index, 1}}) > 0;
}

void select_row(LocalCall& call) {
  const LocalArgs args(call);
  const auto& spec = *args.spec("self");
  const auto dim = args.dim();
  const auto index = c10::maybe_wrap_dim(args.integer("index"), spec.sizes[static_cast<std::size_t>(dim)]);
  const auto& comm = call.communicator();
  const auto segments = segments_of_ranks(spec, dim, call.decision.local_kernel_axes);
  const auto owner = std::find_if(segments.begin(), segments.end(), [&](const auto& s) { return holds(s, index); });
  const auto root = static_cast<int>(owner - segments.begin());
  auto row = root == comm.rank() ? args.tensor("self").select(dim, concatenated_index(*owner, index)).clone()
                                 : at::empty(call.outputs[0]->local_sizes, args.tensor("self").options());
  comm.broadcast(row, root).wait();
  set_results(call, {row});
}

void select_row_backward(LocalCall& call) {
  const LocalArgs args(call);
  const auto& out = *call.outputs[0];
  const auto grad = args.tensor("grad_output");
  const auto dim = c10::maybe_wrap_dim(args.integer("dim"), out.dim());
  const auto size = out.sizes[static_cast<std::size_t>(dim)];
  auto result = at::zeros(out.local_sizes, grad.options());
  const auto own = own_segments(&out, dim, size);
  const auto index = c10::maybe_wrap_dim(args.integer("index"), size);
  if (holds(own, index)) result.select(dim, concatenated_index(own, index)).copy_(grad);
  set_results(call, {result});
}

}  // namespace

void add_row_kernels(LocalKernels& kernels) {
  kernels.emplace("select_row", select_row);
  kernels.emplace("select_row_backward", select_row_backward);
}

}  // namespace dtensor
