// The result of sharding propagation for one call: the placements of operands and results, and how the local call
// differs from the global one. It depends only on the specs and arguments of the call, so it is cached.
#pragma once

#include <ATen/core/ivalue.h>

#include <string>
#include <vector>

#include "redistribute/plan/plan.h"
#include "sharding_prop/operators/op_call.h"

namespace dtensor {

struct OutputDecision {
  MeshRef mesh;           // null: not a tensor, returned unchanged
  Placements placements;  // as the local computation leaves it
  OutputMeta meta;        // global metadata
  // Index of the operand that this result is (in-place and out=) or is a view of; -1 if it is a new tensor.
  int alias = -1;
  bool is_view = false;
};

// Replaces argument `arg` in the local call, for example a size list by its local value.
struct ArgPatch {
  int arg;
  c10::IValue value;
};

struct Decision {
  // For each operand of the call, the placements that its local tensor must have. Empty for regular and undefined
  // operands.
  std::vector<Placements> inputs;
  std::vector<OutputDecision> outputs;
  std::vector<ArgPatch> patches;
  // Operands that the operator writes (in-place, out=). If inputs[i] or the output's placements differ from the
  // operand's placements, the operator kernel computes into a temporary and writes it back in the operand's placements.
  std::vector<int> mutated;
  // Name of the local kernel that replaces the operator, or empty. It communicates on the mesh axes that shard a factor
  // marked with sharded_by_kernel.
  std::string local_kernel;
  AxisMask local_kernel_axes = 0;
  // For messages and explain(): the rule's notation, or the reason for replication.
  std::string why;
  bool warn_replicated = false;  // the operator has no rule and runs replicated
};

}  // namespace dtensor
