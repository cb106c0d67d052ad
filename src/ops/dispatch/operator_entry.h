// OpEntry: an operator's description, its index in the per-thread caches and its special kernel.
#pragma once

#include <ATen/core/stack.h>

#include <cstdint>

#include "sharding_prop/operators/op_info.h"

namespace dtensor {

struct OpEntry;
// Replaces the entire call, before sharding propagation, with DTensors on the stack (as_strided, for instance).
using SpecialKernel = void (*)(const OpEntry&, torch::jit::Stack&);

struct OpEntry : OpInfo {
  OpEntry(const c10::OperatorHandle& op, std::uint32_t index);

  std::uint32_t index;                               // into the per-thread caches
  const std::string& text() const { return text_; }  // aten::add.Tensor
  SpecialKernel special = nullptr;

  // Whether an operand may be replaced by another tensor of equal value.
  bool reads_only() const { return special == nullptr && rule().reads_only; }
  bool foreach_op() const { return rule().data().foreach_op; }
  // Whether the result does not depend on the values of argument `arg`: it is only written, or multiplied by zero.
  bool is_unread(std::size_t arg, c10::ArrayRef<c10::IValue> arguments) const;
  // Whether the operator converts each shard to another dtype.
  bool is_cast() const;

 private:
  std::string text_;
};

// The entry of an operator, created on the first call and never destroyed. Thread-safe.
const OpEntry& entry_of(const c10::OperatorHandle& op);

}  // namespace dtensor
