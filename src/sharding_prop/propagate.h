// The door of the room: from a call to a decision.
#pragma once

#include <functional>

#include "sharding_prop/decision.h"
#include "sharding_prop/strategies/strategy.h"

namespace dtensor {

// Fills call.outputs by running the operator on meta tensors of the global sizes (or by the rule's own formula where
// the operator has no meta kernel).
void infer_outputs(OpCall& call);

// infer_outputs must have run. Deterministic. Throws for operators that are refused, with the reason, and when nothing
// fits: operator, input specs and candidates.
Decision propagate(const OpCall& call);

// Like propagate(), with the strategies that `chooser` gives for each piece of the call (the oracle compares them).
using Chooser = std::function<Assignment(const Problem&)>;
Decision decide(const OpCall& call, const Chooser& chooser);

// The candidates, their prices and the choice, as text.
std::string explain_decision(const OpCall& call);

}  // namespace dtensor
