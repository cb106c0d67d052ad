// Partial to Shard: each member receives the reduced values of its part.
#include <bit>

#include "redistribute/edges/edge.h"
#include "redistribute/result_buffers.h"

namespace dtensor {

at::Tensor run_reduce_scatter(const EdgeCall& call) {
  const at::Tensor result = result_buffer(call.wanted.sizes(), call.local);
  std::vector<at::Tensor> contributions;
  for (const Coordinate& member : call.members()) {
    contributions.push_back(read_part(call.local, call.held, region_of(call.to, call.geometry, member)));
  }
  const ReduceOp op = call.edge.from[std::countr_zero(call.edge.axes)].reduce_op();
  call.communicator().reduce_scatter(result, contributions, op).wait();
  return result;
}

}  // namespace dtensor
