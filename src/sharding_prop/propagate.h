// The door of the room: from a call to a decision.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include "sharding_prop/decision.h"

namespace dtensor {

// What an operator's cache key must contain beyond the operands' specs, decided once per operator.
struct KeyPolicy {
  bool scalars = true;  // values of float, Scalar and complex arguments (their kinds are always part of the key)
};
KeyPolicy key_policy(const c10::OperatorHandle& op);

// Fills call.outputs by running the operator on meta tensors of the global sizes (or by the rule's own formula where
// the operator has no meta kernel).
void infer_outputs(const c10::OperatorHandle& op, OpCall& call);

// infer_outputs must have run. Deterministic. Throws for operators that are refused, with the reason, and when nothing
// fits: operator, input specs and candidates.
Decision propagate(const c10::OperatorHandle& op, const OpCall& call);

// The candidates, their prices and the choice, as text.
std::string explain_decision(const c10::OperatorHandle& op, const OpCall& call);

}  // namespace dtensor
