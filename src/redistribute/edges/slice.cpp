// Replicate to Shard: a view of the local tensor. Views of intermediate results are copied, so that a small part does
// not keep a large buffer alive.
#include <ATen/ATen.h>

#include "internal/simulated.h"
#include "redistribute/edges/edge.h"
#include "redistribute/result_buffers.h"

namespace dtensor {

at::Tensor run_slice(const EdgeCall& call) {
  const at::DimVector sizes = call.wanted.sizes();
  if (call.local.sizes() == at::IntArrayRef(sizes)) return call.local;
  if (call.wanted.numel() == 0) return result_buffer(sizes, call.local);
  at::Tensor part = read_part(call.local, call.held, call.wanted);
  return call.owned && shares_storage(part, call.local) ? copied(part) : part;
}

}  // namespace dtensor
