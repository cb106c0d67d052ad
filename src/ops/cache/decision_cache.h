// The decision cache of a thread: one table per operator, without locks or shared state. A miss computes the same
// decision as a hit without communication, so threads may evict entries independently.
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

// The cached calls of one operator. The calls that were last inserted or found by their key are compared first, by the
// first word of their keys (usually the spec of the first operand).
struct OpCache {
  static constexpr std::size_t kRecent = 8;

  std::array<std::uint64_t, kRecent> first_words = {};  // 0: none
  std::array<CachedCallPtr, kRecent> recent;
  std::size_t oldest = 0;  // index of the recent call that is replaced next
  std::unordered_multimap<std::uint64_t, CachedCallPtr> calls;
};

struct ThreadCache {
  std::vector<OpCache> ops;
  CacheStats stats;
  std::size_t limit = 1024;  // the default of set_cache_limit()
  std::uint64_t book = 0;    // version of the rule book for which the entries were decided

  // Whether no rule was added or removed since. Outdated entries must not be used: ranks with different cache contents
  // would diverge.
  bool is_current() const { return book == book_version.load(std::memory_order_acquire); }

  ThreadCache() { thread_state().cache = this; }
  ~ThreadCache() { thread_state().cache = nullptr; }
  ThreadCache(const ThreadCache&) = delete;
  ThreadCache& operator=(const ThreadCache&) = delete;
};

// Returns null on a miss. The pointer keeps the entry alive if hooks run operators that evict it during the call.
CachedCallPtr find_call(std::uint32_t op_index, const CallKey& key);
// find_call for unboxed kernels, which run no other operator before they finish. It returns null and counts nothing
// for calls that only the boxed kernel can run.
const CachedCall* find_unboxable_call(std::uint32_t op_index, const CallKey& key);
// `book`: the version of the rule book before the decision. If it has changed since, the call is returned but not
// cached.
CachedCallPtr insert_call(std::uint32_t op_index, std::unique_ptr<CachedCall> call, std::uint64_t book);

}  // namespace dtensor
