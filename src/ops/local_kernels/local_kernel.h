// A local computation that replaces the plain operator on this rank, because some factor that it reduces over is
// sharded (softmax over a sharded class dimension, a vocabulary-sharded embedding) or because its values depend on
// global indices (random fills). Rules name it (`handled`), the engine calls it.
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
  c10::ArrayRef<SpecPtr>
      inputs;  // per operand, as the local tensors are now (after redistribution); null: plain, absent
  c10::ArrayRef<SpecPtr> outputs;  // per flattened output, as the local results must be
  const MeshImpl& mesh;

  // The ranks over which a handled factor is split; valid where decision.local_kernel_axes != 0.
  const Communicator& communicator() const { return mesh.communicator(decision.local_kernel_axes); }
};

using LocalKernel = void (*)(LocalCall&);

using LocalKernels = std::map<std::string, LocalKernel, std::less<>>;

LocalKernel find_local_kernel(std::string_view name);  // error lists the name if absent

}  // namespace dtensor
