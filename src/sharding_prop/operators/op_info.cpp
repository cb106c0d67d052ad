// Reads an operator's schema. No other file does.
#include "sharding_prop/operators/op_info.h"

#include <ATen/core/jit_type.h>

#include <algorithm>

namespace dtensor {
namespace {

bool holds(const c10::Type& type, std::initializer_list<c10::TypeKind> kinds) {
  const auto& inner = type.containedTypes();
  return std::find(kinds.begin(), kinds.end(), type.kind()) != kinds.end() ||
         std::any_of(inner.begin(), inner.end(), [&](const auto& t) { return holds(*t, kinds); });
}

bool holds_tensor(const c10::Type& type) { return holds(type, {c10::TypeKind::TensorType}); }

bool is_list(const c10::Type& type) {
  if (type.kind() == c10::TypeKind::OptionalType) return is_list(*type.containedTypes()[0]);
  return type.kind() == c10::TypeKind::ListType;
}

ArgInfo read_argument(const c10::Argument& argument) {
  ArgInfo info;
  const auto& type = *argument.real_type();
  if (holds(type, {c10::TypeKind::ScalarTypeType})) info.kind = ArgKind::dtype;
  if (holds(type, {c10::TypeKind::NumberType, c10::TypeKind::FloatType})) info.kind = ArgKind::scalar;
  if (holds_tensor(type)) info.kind = is_list(type) ? ArgKind::tensor_list : ArgKind::tensor;
  info.mutated = info.holds_tensors() && argument.alias_info() != nullptr && argument.alias_info()->isWrite();
  info.out = info.mutated && argument.kwarg_only();
  return info;
}

int aliased_arg(const c10::FunctionSchema& schema, const c10::AliasInfo& info) {
  const auto& arguments = schema.arguments();
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const c10::AliasInfo* other = arguments[i].alias_info();
    if (other == nullptr) continue;
    for (const c10::Symbol& set : info.beforeSets()) {
      if (other->beforeSets().count(set) != 0) return static_cast<int>(i);
    }
  }
  return -1;
}

ReturnInfo read_return(const c10::FunctionSchema& schema, const c10::Argument& value) {
  ReturnInfo result;
  result.is_tensor = holds_tensor(*value.type());
  result.is_list = result.is_tensor && is_list(*value.type());
  result.is_number = value.type()->isSubtypeOf(*c10::NumberType::get());
  const c10::AliasInfo* info = value.alias_info();
  // For lists, the alias info of the entries: Tensor(a)[].
  if (info != nullptr && info->beforeSets().empty() && !info->containedTypes().empty()) {
    info = &info->containedTypes()[0];
  }
  if (info != nullptr) {
    result.arg = aliased_arg(schema, *info);
    result.write = info->isWrite();
  }
  return result;
}

}  // namespace

OpInfo::OpInfo(const c10::OperatorHandle& handle) : op(handle) {
  for (const c10::Argument& argument : schema().arguments()) {
    args.push_back(read_argument(argument));
    mutates |= args.back().mutated;
    has_out |= args.back().out;
    inplace |= args.back().mutated && !args.back().out;
  }
  for (const c10::Argument& value : schema().returns()) {
    returns.push_back(read_return(schema(), value));
    returns_tensor |= returns.back().is_tensor;
    gives_view |= value.alias_info() != nullptr && !value.alias_info()->isWrite();
  }
  device_arg = schema().argumentIndexWithName("device").value_or(-1);
  generator_arg = schema().argumentIndexWithName("generator").value_or(-1);
  dtype_arg = schema().argumentIndexWithName("dtype").value_or(-1);
  inplace_view = op.hasTag(at::Tag::inplace_view);
  dynamic_shape = op.hasTag(at::Tag::dynamic_output_shape);
  is_random = op.hasTag(at::Tag::nondeterministic_seeded);
}

bool OpInfo::returns_tensors_only() const {
  return std::all_of(returns.begin(), returns.end(), [](const ReturnInfo& r) { return r.is_tensor && !r.is_list; });
}

bool needs_kernel(const c10::OperatorHandle& op) {
  // A few implicit operators also have a backend kernel (silu_backward), which a call would reach directly.
  const bool backend = op.hasKernelForDispatchKey(c10::DispatchKey::CPU);
  if (op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd) && !backend) return false;
  const auto& arguments = op.schema().arguments();
  return std::any_of(arguments.begin(), arguments.end(), [](const auto& a) { return holds_tensor(*a.real_type()); });
}

}  // namespace dtensor
