// Iteration over the tensors of an argument or a result, and over the operands of a call.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include "sharding_prop/operators/op_info.h"

namespace dtensor {

// Calls `visit` for each defined tensor of a value (a tensor or a nested list), in order.
template <class Visit>
void for_each_tensor(const c10::IValue& value, const Visit& visit) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) visit(value.toTensor());
  } else if (value.isList()) {
    for (const c10::IValue& item : value.toListRef()) for_each_tensor(item, visit);
  }
}

// Calls `visit(argument, position, value)` for each tensor operand of a call, in the order of CallOperands::tensors.
// The position is that in a list argument, else -1. The value may be no tensor, or an undefined one.
template <class Visit>
void for_each_operand(const OpInfo& op, c10::ArrayRef<c10::IValue> args, const Visit& visit) {
  for (std::size_t i = 0; i < args.size(); ++i) {
    if (op.args[i].kind == ArgKind::tensor) visit(i, -1, args[i]);
    if (op.args[i].kind != ArgKind::tensor_list || !args[i].isList()) continue;
    int position = 0;
    for (const c10::IValue& item : args[i].toListRef()) visit(i, position++, item);
  }
}

}  // namespace dtensor
