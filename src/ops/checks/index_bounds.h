// Bounds checks of index operands, with the same error on every rank that holds the indices.
#pragma once

#include "ops/cache/cached_call.h"

namespace dtensor {

struct OpCall;
struct ExecutionFrame;

// The checks that a call needs. A local operator checks only the indices that it uses, and none if its data is empty.
// So every rank checks a replicated index entirely if it uses a slice of it or if some rank may have no elements. A
// sharded index is checked by the local operators: the rank with an invalid index throws, and its error stops the
// others. Only indices in host memory are checked: device kernels assert, and the host does not wait for them.
std::vector<IndexBound> index_bounds(const OpEntry& entry, const OpCall& described, const CachedCall& call);

// Throws IndexError with the index and the size. `before` selects the checks before or after operands are redistributed
// for the local call.
void check_index_bounds(const ExecutionFrame& frame, bool before);

}  // namespace dtensor
