// What the engine must know of an operator at every call, read off its schema once, at registration.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "sharding_prop/propagate.h"

namespace dtensor {

// scalar: a number whose value seldom matters for the decision (Scalar, float), or a list of such.
enum class ArgKind : std::uint8_t { tensor, tensor_list, scalar, other };

struct ArgInfo {
  ArgKind kind = ArgKind::other;
  bool mutated = false;      // Tensor(a!)
  bool out = false;          // keyword-only and mutated: out=
  bool overwritten = false;  // its content does not matter: out=, the destination of copy_
};

struct OpEntry;
// Takes over a whole call, before propagation, with DTensors on the stack (as_strided, for instance).
using SpecialKernel = void (*)(const OpEntry&, torch::jit::Stack&);

struct OpEntry {
  explicit OpEntry(const c10::OperatorHandle& op, std::uint32_t index);

  c10::OperatorHandle op;
  std::uint32_t index;  // into the per-thread caches
  KeyPolicy key;
  std::vector<ArgInfo> args;
  bool gives_view = false;
  int device_arg = -1;  // the argument `device`, where there is one
  bool mutates = false;
  bool reads_only = false;           // nothing written, no view returned: an operand may be exchanged for its equal
  bool inplace_view = false;         // t_, squeeze_, ...: changes metadata
  bool per_position_meshes = false;  // _foreach_*, _fused_*: each list position has its own mesh
  bool is_random = false;            // advances the world's random counter, also on ranks outside the mesh
  bool asks_destination = false;     // the gradient of a table: only the rows that the parameter's shard wants are made
  SpecialKernel special = nullptr;

  const char* name() const { return op.operator_name().name.c_str(); }
};

// Whether the engine has to know the operator: it takes tensors and has no composite-implicit kernel.
bool needs_kernel(const c10::OperatorHandle& op);

// The entry of an operator; made when first asked for. Lives for the program. Thread-safe.
const OpEntry& entry_of(const c10::OperatorHandle& op);

}  // namespace dtensor
