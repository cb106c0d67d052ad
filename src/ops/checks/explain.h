// explain()'s short form: what moves, by module and operator, and what would avoid it.
#pragma once

#include "ops/cache/cached_call.h"

namespace dtensor {

// Whether explain() is told of moves.
bool is_explaining_redistributions();
// What an operator moves unasked, noted there.
void record_redistributions(const CachedCall& call);
// The same for a call that is no operator's: that `operand` of spec `from` lay as `to` would avoid it.
void record_redistribution(const std::string& operand, const std::string& from, const Placements& to);

}  // namespace dtensor
