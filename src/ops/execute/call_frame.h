// One call while it is carried out: what was decided, and the operands and local tensors that it needs till its end.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>

#include <vector>

#include "ops/cache/cached_call.h"
#include "ops/cache/call_view.h"

namespace dtensor {

// What the call leaves behind for the wrapping: operands that are returned or written.
struct ExecutionFrame {
  const OpEntry& entry;
  const CachedCall& call;
  const CallView& view;
  // Keep the operands alive while the stack holds their local tensors.
  c10::SmallVector<at::Tensor, 8> operands;
  c10::SmallVector<at::Tensor, 8> locals;  // per operand, as given to the local call
  std::vector<at::Tensor> moved;           // list operators: operands that were redistributed together, else undefined
};

// Replaces the call's arguments on the stack, from `first` on, by what the local call takes: local tensors,
// redistributed where the decision says so, and patched numbers. Collective where something moves.
void unwrap_arguments(ExecutionFrame& frame, torch::jit::Stack& stack, std::size_t first);

// Gradients of operands that are moved from shard to shard will come back to where these lie.
void register_gradient_resharding(const ExecutionFrame& frame);

}  // namespace dtensor
