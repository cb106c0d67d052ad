// The decision cache of this thread. One table per operator; no lock, no shared state. A pure optimisation: a miss
// decides what a hit would have found, and never communicates, so that each thread may forget what it likes.
#pragma once

#include <array>
#include <memory>
#include <unordered_map>
#include <vector>

#include "dtensor/inspect.h"
#include "ops/cache/cached_call.h"
#include "scope/thread_state.h"

namespace dtensor {

using CachedCallPtr = std::shared_ptr<const CachedCall>;

// The calls of one operator. The last that were found are looked at first: their keys begin with these words, which are
// the specs of most's first operands.
struct OpCache {
  static constexpr std::size_t kRecent = 8;

  std::array<std::uint64_t, kRecent> first_words = {};  // 0: none
  std::array<CachedCallPtr, kRecent> recent;
  std::size_t oldest = 0;  // of them, which gives way to the next
  std::unordered_multimap<std::uint64_t, CachedCallPtr> calls;
};

struct ThreadCache {
  std::vector<OpCache> ops;
  CacheStats stats;
  std::size_t limit = kDefaultCacheLimit;
  std::uint64_t book = 0;  // the rule book's version when these were decided

  // A rule that was added, or refused, since then may decide otherwise; and what ranks remember must make no
  // difference.
  bool is_current() const { return book == book_version.load(std::memory_order_acquire); }

  ThreadCache() { thread_state().cache = this; }
  ~ThreadCache() { thread_state().cache = nullptr; }
  ThreadCache(const ThreadCache&) = delete;
  ThreadCache& operator=(const ThreadCache&) = delete;
};

// Null on a miss. What a call may forget while it runs (its hooks may run operators) is kept alive by the pointer.
CachedCallPtr cache_find(std::uint32_t op_index, const CallKey& key);
// The same for unboxed kernels, which run no other operator meanwhile. What they do not take is not counted, since they
// go on to cache_find; nor is what they find they cannot take after all (undo_hit_count).
const CachedCall* find_unboxable(std::uint32_t op_index, const CallKey& key);
void undo_hit_count();
// `book`: the version of the rule book before it was decided; where that is another by now, the call is not kept.
CachedCallPtr cache_insert(std::uint32_t op_index, std::unique_ptr<CachedCall> call, std::uint64_t book);

}  // namespace dtensor
