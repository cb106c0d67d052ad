// explain()'s short form: what moves, by module and operator, and what would avoid it.
#pragma once

#include "ops/cached_call.h"

namespace dtensor {

// Whether explain() is told of moves.
bool explaining_moves();
// What an operator moves unasked, noted there.
void note_moves(const CachedCall& call);
// The same for a call that is no operator's: that `operand` of spec `from` lay as `to` would avoid it.
void note_move(const std::string& operand, const std::string& from, const Placements& to);

}  // namespace dtensor
