// explain()'s short form: what moves, by module and operator, and what would avoid it.
#pragma once

#include "ops/cached_call.h"

namespace dtensor {

// What an operator moves unasked, noted where explain() is told of moves.
void note_moves(const CachedCall& call);

}  // namespace dtensor
