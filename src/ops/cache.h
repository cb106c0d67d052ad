// The decision cache of this thread. One table per operator; no lock, no shared state. A pure optimisation: a miss
// decides what a hit would have found, and never communicates, so that each thread may forget what it likes.
#pragma once

#include <memory>

#include "dtensor/inspect.h"
#include "ops/cached_call.h"

namespace dtensor {

using CachedCallPtr = std::shared_ptr<const CachedCall>;

// Null on a miss. What a call may forget while it runs (its hooks may run operators) is kept alive by the pointer.
CachedCallPtr cache_find(std::uint32_t op_index, const CallKey& key);
// The same for callers that run no other operator meanwhile; a miss is not counted, since they go on to cache_find.
const CachedCall* cache_find_hit(std::uint32_t op_index, const CallKey& key);
CachedCallPtr cache_insert(std::uint32_t op_index, std::unique_ptr<CachedCall> call);

}  // namespace dtensor
