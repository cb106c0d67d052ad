// Partial to Replicate.
#include "redistribute/edges/edge.h"
#include "redistribute/result_buffers.h"

#include <bit>

namespace dtensor {

at::Tensor run_all_reduce(const EdgeCall& call) {
  const ReduceOp op = call.edge.from[std::countr_zero(call.edge.axes)].reduce_op();
  if (call.owned && call.local.is_contiguous()) {
    call.communicator().all_reduce(call.local, op).wait();
    return call.local;
  }
  const at::Tensor result = result_buffer(call.local.sizes(), call.local);
  call.communicator().all_reduce(result, call.local, op).wait();
  return result;
}

}  // namespace dtensor
