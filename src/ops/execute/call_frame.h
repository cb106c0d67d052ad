// ExecutionFrame: the state of a call during its execution.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>

#include <vector>

#include "ops/cache/cached_call.h"
#include "ops/cache/call_operands.h"

namespace dtensor {

// The cached call, its operands and its local tensors. Results are wrapped with the operands that are returned or
// written.
struct ExecutionFrame {
  const OpEntry& entry;
  const CachedCall& call;
  const CallOperands& operands;
  // Keep the operands alive while the stack holds their local tensors.
  c10::SmallVector<at::Tensor, 8> owned;
  c10::SmallVector<at::Tensor, 8> locals;  // per operand, as passed to the local call
  std::vector<at::Tensor> moved;           // list operators: operands redistributed in one bucket; others are undefined
};

// Replaces the arguments on the stack, from `first` on, by those of the local call: local tensors, redistributed by the
// decision's plans, and patched numbers. Collective if an operand is redistributed.
void unwrap_arguments(ExecutionFrame& frame, torch::jit::Stack& stack, std::size_t first);

// Registers that gradients of operands which are resharded (from one shard to another) return to the operands'
// placements.
void register_gradient_resharding(const ExecutionFrame& frame);

}  // namespace dtensor
