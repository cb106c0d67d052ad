// What the propagation decides for one call: the placements that the local computation needs and gives, and how the
// local call differs from the global one. A value that depends on the call's specs and arguments only, so it is cached.
#pragma once

#include <ATen/core/ivalue.h>

#include <string>
#include <vector>

#include "redistribute/plan/plan.h"
#include "sharding_prop/operators/op_call.h"

namespace dtensor {

struct OutputDecision {
  MeshRef mesh;           // null: returned as a plain value (non-tensor output)
  Placements placements;  // as the local computation leaves it
  OutputMeta meta;        // global
  // Returned tensor is operand `alias` itself (in-place and out=) or a view of it; -1: fresh.
  int alias = -1;
  bool is_view = false;
};

// Replaces argument `arg` for the local call (a size list by its local value, for instance).
struct ArgPatch {
  int arg;
  c10::IValue value;
};

struct Decision {
  // Per operand of the call: the placements that its local tensor must have. Empty for plain and undefined operands.
  std::vector<Placements> inputs;
  std::vector<OutputDecision> outputs;
  std::vector<ArgPatch> patches;
  // Mutated operands (in-place, out=): where inputs[i] or the output's placements differ from the operand's own, the
  // engine computes into a temporary and writes it back in the operand's placements.
  std::vector<int> mutated;
  // Name of the local computation that replaces the plain operator, or empty; and the mesh axes on which it must
  // communicate (those that shard a factor that the rule marked as handled).
  std::string local_kernel;
  AxisMask local_kernel_axes = 0;
  // For messages and explain(): the rule text, or why it is replicated.
  std::string why;
  bool warn_replicated = false;  // operator without a rule: ran replicated
};

}  // namespace dtensor
