// Reads an operator's schema into an OpEntry.
#include "ops/op_entry.h"

#include <ATen/core/jit_type.h>

#include <algorithm>
#include <mutex>
#include <unordered_map>

#include "ops/special/special.h"

namespace dtensor {
namespace {

bool holds_tensor(const c10::Type& type) {
  if (type.kind() == c10::TypeKind::TensorType) return true;
  for (const auto& inner : type.containedTypes()) {
    if (holds_tensor(*inner)) return true;
  }
  return false;
}

bool holds_scalar(const c10::Type& type) {
  if (type.kind() == c10::TypeKind::NumberType || type.kind() == c10::TypeKind::FloatType) return true;
  for (const auto& inner : type.containedTypes()) {
    if (holds_scalar(*inner)) return true;
  }
  return false;
}

bool is_list(const c10::Type& type) {
  if (type.kind() == c10::TypeKind::OptionalType) return is_list(*type.containedTypes()[0]);
  return type.kind() == c10::TypeKind::ListType;
}

ArgInfo read_argument(const c10::Argument& argument) {
  ArgInfo info;
  const auto& type = *argument.real_type();
  if (holds_scalar(type)) info.kind = ArgKind::scalar;
  if (holds_tensor(type)) info.kind = is_list(type) ? ArgKind::tensor_list : ArgKind::tensor;
  info.mutated = argument.alias_info() != nullptr && argument.alias_info()->isWrite();
  info.out = info.overwritten = info.mutated && argument.kwarg_only();
  return info;
}

bool starts_with(const std::string& text, std::string_view prefix) { return text.rfind(prefix, 0) == 0; }

}  // namespace

OpEntry::OpEntry(const c10::OperatorHandle& handle, std::uint32_t entry_index)
    : op(handle), index(entry_index), key(key_policy(handle)) {
  const auto& schema = op.schema();
  for (const auto& argument : schema.arguments()) {
    args.push_back(read_argument(argument));
    mutates = mutates || args.back().mutated;
  }
  for (const auto& ret : schema.returns()) {
    gives_view = gives_view || (ret.alias_info() != nullptr && !ret.alias_info()->isWrite());
  }
  device_arg = schema.argumentIndexWithName("device").value_or(-1);
  inplace_view = op.hasTag(at::Tag::inplace_view);
  is_random = op.hasTag(at::Tag::nondeterministic_seeded);
  const auto& full_name = op.operator_name().name;
  per_position_meshes = starts_with(full_name, "aten::_foreach_") || starts_with(full_name, "aten::_fused_ada") ||
                        starts_with(full_name, "aten::_fused_sgd") || starts_with(full_name, "aten::_amp_foreach_");
  if (full_name == "aten::copy_") args[0].overwritten = true;
  asks_destination = full_name == "aten::embedding_dense_backward" || full_name == "aten::_embedding_bag_backward" ||
                     full_name == "aten::_embedding_bag_dense_backward";
  special = find_special(op);
  const bool writes_unsaid = full_name.find("batch_norm") != std::string::npos;  // running statistics
  reads_only = !mutates && !gives_view && !inplace_view && !writes_unsaid && special == nullptr;
}

bool needs_kernel(const c10::OperatorHandle& op) {
  // A few implicit operators have a backend kernel besides (silu_backward), which would be reached past us.
  const bool backend = op.hasKernelForDispatchKey(c10::DispatchKey::CPU);
  if (op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd) && !backend) return false;
  for (const auto& argument : op.schema().arguments()) {
    if (holds_tensor(*argument.real_type())) return true;
  }
  return false;
}

const OpEntry& entry_of(const c10::OperatorHandle& op) {
  static std::mutex mutex;
  static auto& entries = *new std::unordered_map<c10::OperatorName, std::unique_ptr<OpEntry>>();
  std::lock_guard lock(mutex);
  auto& slot = entries[op.operator_name()];
  if (!slot) slot = std::make_unique<OpEntry>(op, static_cast<std::uint32_t>(entries.size() - 1));
  return *slot;
}

}  // namespace dtensor
