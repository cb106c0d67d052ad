// The interface of sharding propagation: computes the decision for a call.
#pragma once

#include <functional>

#include "sharding_prop/decision.h"
#include "sharding_prop/strategies/strategy.h"

namespace dtensor {

// Fills call.outputs by running the operator on meta tensors of global sizes, or with the rule's own function if the
// operator has no meta kernel.
void infer_outputs(OpCall& call);

// Requires infer_outputs. Deterministic. Throws with the reason if the operator is refused. If no strategy fits, throws
// with operator, input specs and candidates.
Decision propagate(const OpCall& call);

// Like propagate(), with the strategies that `chooser` selects for each part of the call (used to verify rules).
using Chooser = std::function<Assignment(const BoundRule&)>;
Decision decide(const OpCall& call, const Chooser& chooser);

// The candidates, their costs and the choice, as text.
std::string explain_decision(const OpCall& call);

}  // namespace dtensor
