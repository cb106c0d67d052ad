// Decisions for a given choice of strategies, for who compares them (the oracle).
#pragma once

#include <functional>

#include "sharding_prop/decision.h"
#include "sharding_prop/strategy.h"

namespace dtensor {

using Chooser = std::function<Assignment(const Problem&)>;

// Like propagate(), with the strategies that `chooser` gives for each piece of the call.
Decision decide(const OpCall& call, const Chooser& chooser);

}  // namespace dtensor
