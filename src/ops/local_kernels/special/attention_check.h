// Checked mode's look at attention on a split sequence, which is no operator with a rule: replicas are compared with
// each other, and calls that are picked with plain ATen on the whole operands.
#pragma once

#include "dtensor/attention.h"
#include "tensor/impl/dtensor_impl.h"

namespace dtensor {

class AttentionCheck {
 public:
  // Before the call, on members of the mesh. Collective.
  AttentionCheck(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionOptions& options,
                 bool picked);
  // After it. Collective. Throws on every rank of the mesh.
  void compare(const at::Tensor& out) const;

 private:
  at::Tensor expected_;  // undefined: not compared
};

}  // namespace dtensor
