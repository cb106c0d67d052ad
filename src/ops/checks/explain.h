// explain() and its report Explain::communication: bytes by module and operator, and the placements that would avoid
// them. The report Explain::decisions is recorded by inspect_state.h; sharding_prop/propagate.h writes a decision as
// text.
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
