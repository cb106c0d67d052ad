// An operator as the engine calls it: its description, its place in the per-thread caches, its special kernel.
#pragma once

#include <ATen/core/stack.h>

#include <cstdint>

#include "sharding_prop/operators/op_info.h"

namespace dtensor {

struct OpEntry;
// Takes over a whole call, before propagation, with DTensors on the stack (as_strided, for instance).
using SpecialKernel = void (*)(const OpEntry&, torch::jit::Stack&);

struct OpEntry : OpInfo {
  OpEntry(const c10::OperatorHandle& op, std::uint32_t index);

  std::uint32_t index;                               // into the per-thread caches
  const std::string& text() const { return text_; }  // aten::add.Tensor
  SpecialKernel special = nullptr;

  // An operand may be exchanged for its equal.
  bool reads_only() const { return special == nullptr && rule().reads_only; }
  bool foreach_op() const { return rule().data().foreach_op; }
  // Whether the content of argument `arg` may be anything: it is only written, or multiplied by nothing.
  bool is_unread(std::size_t arg, c10::ArrayRef<c10::IValue> arguments) const;
  // To another type, shard by shard.
  bool is_cast() const;

 private:
  std::string text_;
};

// The entry of an operator; made when first asked for. Lives for the program. Thread-safe.
const OpEntry& entry_of(const c10::OperatorHandle& op);

}  // namespace dtensor
