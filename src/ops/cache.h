// The decision cache of this thread. One table per operator; no lock, no shared state. Bounded per operator and mesh,
// so that all ranks of a mesh, which see the same calls on it, evict at the same call (a miss may communicate).
#pragma once

#include <memory>

#include "dtensor/inspect.h"
#include "ops/cached_call.h"

namespace dtensor {

inline constexpr std::size_t kCacheEntriesPerOpAndMesh = 512;

// Null on a miss. The entry lives until the thread's next insertion or clear.
CachedCall* cache_find(std::uint32_t op_index, const CallKey& key);
// The same without counting a miss: the caller goes on to cache_find.
CachedCall* cache_find_hit(std::uint32_t op_index, const CallKey& key);
CachedCall* cache_insert(std::uint32_t op_index, std::unique_ptr<CachedCall> call);

}  // namespace dtensor
