// Local kernels: local computations that replace the ATen operator. They are needed if a factor of the operator is
// sharded (softmax over a sharded dimension, a vocabulary-sharded embedding) or if values depend on global indices
// (random fills). Rules name them (`handled`).
#pragma once

#include <ATen/core/stack.h>

#include <map>
#include <string>
#include <string_view>

#include "mesh/mesh_impl.h"
#include "sharding_prop/decision.h"

namespace dtensor {

struct LocalCall {
  const OpInfo& info;
  torch::jit::Stack& stack;  // in: one local value per schema argument, patches applied; out: one value per return
  const Decision& decision;
  c10::ArrayRef<SpecPtr> inputs;   // per operand, after redistribution; null: absent, or without a spec
  c10::ArrayRef<SpecPtr> outputs;  // per flattened output: the required specs of the local results
  const MeshImpl& mesh;

  // The ranks over which a handled factor is sharded; valid if decision.local_kernel_axes != 0.
  const Communicator& communicator() const { return mesh.communicator(decision.local_kernel_axes); }
};

using LocalKernel = void (*)(LocalCall&);

using LocalKernels = std::map<std::string, LocalKernel, std::less<>>;

LocalKernel find_local_kernel(std::string_view name);  // throws if there is none

}  // namespace dtensor
