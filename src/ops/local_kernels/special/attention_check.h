// Checks of attention on a sharded sequence in checked mode. Replicas are compared across ranks, and sampled calls are
// compared with ATen's attention on full operands. Attention needs its own check because it has no sharding rule.
#pragma once

#include "dtensor/attention.h"
#include "tensor/impl/dtensor_impl.h"

namespace dtensor {

class AttentionCheck {
 public:
  // Checks the operands before the call, on members of the mesh. `picked`: also compare the result. Collective.
  AttentionCheck(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionOptions& options,
                 bool picked);
  // Checks the result after the call. Throws on every rank of the mesh. Collective.
  void compare(const at::Tensor& out) const;

 private:
  at::Tensor expected_;  // undefined: not compared
};

}  // namespace dtensor
