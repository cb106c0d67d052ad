// Shards to other shards: members exchange the intersections of what one stores and the other needs.
#include "redistribute/edges/edge.h"
#include "redistribute/result_buffers.h"

namespace dtensor {

at::Tensor run_all_to_all(const EdgeCall& call) {
  const at::Tensor result = result_buffer(call.wanted.sizes(), call.local);
  PendingReceives receives(result, call.wanted);
  std::vector<at::Tensor> inputs;
  for (const Coordinate& member : call.members()) {
    inputs.push_back(
        read_part(call.local, call.held, intersection(call.held, region_of(call.to, call.geometry, member))));
    receives.expect(intersection(region_of(call.from, call.geometry, member), call.wanted));
  }
  call.communicator().all_to_all(receives.views(), inputs).wait();
  receives.finish();
  return result;
}

}  // namespace dtensor
