// The short form of explain(): communication by module and operator, and the placements that would avoid it.
#pragma once

#include "ops/cache/cached_call.h"

namespace dtensor {

// Whether a current explain() records redistributions.
bool is_explaining_redistributions();
// Records the implicit redistributions of an operator in the current explain().
void record_redistributions(const CachedCall& call);
// Records, for a call that is not an operator, that placing `operand` (of spec `from`) as `to` would avoid
// communication.
void record_redistribution(const std::string& operand, const std::string& from, const Placements& to);

}  // namespace dtensor
