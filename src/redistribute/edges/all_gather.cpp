// Shard to Replicate: each member's part is received at its position in the result, computed from its ranges.
#include "redistribute/edges/edge.h"
#include "redistribute/result_buffers.h"

namespace dtensor {

at::Tensor run_all_gather(const EdgeCall& call) {
  const at::Tensor result = result_buffer(call.wanted.sizes(), call.local);
  PendingReceives receives(result, call.wanted);
  for (const Coordinate& member : call.members()) receives.expect(region_of(call.from, call.geometry, member));
  call.communicator().all_gather(receives.views(), call.local).wait();
  receives.finish();
  return result;
}

}  // namespace dtensor
