// Partial to Replicate.
#include "redistribute/buffers.h"
#include "redistribute/edges/edge.h"

#include <bit>

namespace dtensor {

at::Tensor run_all_reduce(const EdgeCall& call) {
  at::Tensor result = call.owned && call.local.is_contiguous() ? call.local : copied(call.local);
  const ReduceOp op = call.edge.from[std::countr_zero(call.edge.axes)].reduce_op();
  call.communicator().all_reduce(result, op).wait();
  return result;
}

}  // namespace dtensor
