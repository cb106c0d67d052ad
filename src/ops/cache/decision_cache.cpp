// The per-thread decision cache. It compares the recent hits of an operator first, then looks up the key's hash.
#include "ops/cache/decision_cache.h"

#include <algorithm>

namespace dtensor {
namespace {

ThreadCache& thread_cache() {
  static thread_local ThreadCache cache;
  return cache;
}

// The cache of this thread, cleared first if the sharding rules have changed.
ThreadCache& current_cache() {
  auto& thread = thread_cache();
  if (C10_UNLIKELY(!thread.is_current())) {
    clear_cache();
    thread.book = book_version.load(std::memory_order_acquire);
  }
  return thread;
}

bool same_key(const CallKey& a, const CallKey& b) {
  return a.size() == b.size() && std::equal(a.begin(), a.end(), b.begin());
}

std::uint64_t first_key_word(const CallKey& key) { return key.empty() ? 0 : key.front(); }

const CachedCallPtr* find_recent(const OpCache& cache, const CallKey& key) {
  for (std::size_t i = 0; i < OpCache::kRecent; ++i) {
    if (cache.first_words[i] != first_key_word(key) || cache.recent[i] == nullptr) continue;
    if (same_key(cache.recent[i]->key, key)) return &cache.recent[i];
  }
  return nullptr;
}

const CachedCallPtr& remember(OpCache& cache, const CachedCallPtr& call) {
  const auto i = std::exchange(cache.oldest, (cache.oldest + 1) % OpCache::kRecent);
  cache.first_words[i] = first_key_word(call->key);
  return cache.recent[i] = call;
}

// Null on a miss.
const CachedCallPtr* find(ThreadCache& thread, std::uint32_t op_index, const CallKey& key) {
  if (op_index >= thread.ops.size()) thread.ops.resize(op_index + 1);
  auto& cache = thread.ops[op_index];
  const auto* call = find_recent(cache, key);
  if (call == nullptr) {
    const auto [begin, end] = cache.calls.equal_range(key.hash());
    const auto it = std::find_if(begin, end, [&](const auto& entry) { return same_key(entry.second->key, key); });
    if (it == end) return nullptr;
    call = &remember(cache, it->second);
  }
  return call;
}

}  // namespace

const CachedCall* find_unboxable_call(std::uint32_t op_index, const CallKey& key) {
  auto& thread = current_cache();
  const auto* call = find(thread, op_index, key);
  if (call == nullptr || !(*call)->unboxable) return nullptr;
  ++thread.stats.hits, ++thread.stats.key_lookups;
  return call->get();
}

CachedCallPtr find_call(std::uint32_t op_index, const CallKey& key) {
  auto& thread = current_cache();
  const auto* call = find(thread, op_index, key);
  if (call == nullptr) return ++thread.stats.misses, nullptr;
  ++thread.stats.hits, ++thread.stats.key_lookups, ++thread.stats.boxed_hits;
  return *call;
}

CachedCallPtr insert_call(std::uint32_t op_index, std::unique_ptr<CachedCall> call, std::uint64_t book) {
  auto& thread = current_cache();
  if (C10_UNLIKELY(thread.book != book)) return CachedCallPtr(std::move(call));
  if (op_index >= thread.ops.size()) thread.ops.resize(op_index + 1);
  OpCache former;  // destroyed last: destructors of cached meshes may run code that uses the cache
  auto& cache = thread.ops[op_index];
  if (cache.calls.size() >= thread.limit) {
    former = std::exchange(cache, {});
    thread.stats.evictions += former.calls.size();
    thread.stats.entries -= former.calls.size();
  }
  ++thread.stats.entries;
  const auto hash = call->hash;
  return remember(cache, cache.calls.emplace(hash, std::move(call))->second);
}

CacheStats cache_stats() { return thread_cache().stats; }

void set_cache_limit(std::size_t entries) {
  TORCH_CHECK(entries > 0, "set_cache_limit: expected a limit of at least 1 entry per operator, got 0");
  thread_cache().limit = entries;
}

void clear_cache() {
  const auto entries = std::exchange(thread_cache().ops, {});
  thread_cache().stats.entries = 0;
}

}  // namespace dtensor
