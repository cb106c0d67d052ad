// Indices beyond the dimension that they index, told on every rank that has them.
#pragma once

#include "ops/cache/cached_call.h"

namespace dtensor {

struct OpCall;
struct ExecutionFrame;

// The local operator judges the part of the indices that its rank works on, and none where its part of the data is
// empty. So where a rank has the whole index, and would work on a slice of it or might have nothing to do, all of it is
// looked at, by every rank alike. Where the index itself is split no rank has all of it: the one that holds what is
// wrong throws, and its error ends the run with the others. In host memory alone: a device asserts for itself, and is
// not waited for.
std::vector<IndexBound> index_bounds(const OpEntry& entry, const OpCall& described, const CachedCall& call);

// Throws IndexError, with the index and the size, for those bounds that are `before` (the operands are laid out as the
// local call needs them) or not.
void check_index_bounds(const ExecutionFrame& frame, bool before);

}  // namespace dtensor
