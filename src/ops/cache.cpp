// The per-thread decision cache: open hashing by key, the last hit of each operator tried first.
#include "ops/cache.h"

#include <algorithm>
#include <unordered_map>

namespace dtensor {
namespace {

struct OpCache {
  CachedCall* last = nullptr;
  std::unordered_multimap<std::uint64_t, std::unique_ptr<CachedCall>> calls;
  std::unordered_map<const MeshInfo*, std::size_t> per_mesh;
};

struct ThreadCache {
  std::vector<OpCache> ops;
  CacheStats stats;
};

ThreadCache& thread_cache() {
  static thread_local ThreadCache cache;
  return cache;
}

bool same_key(const CallKey& a, const CallKey& b) {
  return a.size() == b.size() && std::equal(a.begin(), a.end(), b.begin());
}

void evict_mesh(OpCache& cache, const MeshInfo* mesh, CacheStats& stats) {
  const auto dropped = std::erase_if(cache.calls, [&](const auto& entry) { return entry.second->mesh.get() == mesh; });
  cache.last = nullptr;
  cache.per_mesh[mesh] = 0;
  stats.evictions += dropped;
  stats.entries -= dropped;
}

}  // namespace

CachedCall* cache_find_hit(std::uint32_t op_index, const CallKey& key) {
  auto& thread = thread_cache();
  if (op_index >= thread.ops.size()) thread.ops.resize(op_index + 1);
  auto& cache = thread.ops[op_index];
  if (cache.last == nullptr || !same_key(cache.last->key, key)) {
    const auto [begin, end] = cache.calls.equal_range(key.hash());
    const auto it = std::find_if(begin, end, [&](const auto& entry) { return same_key(entry.second->key, key); });
    if (it == end) return nullptr;
    cache.last = it->second.get();
  }
  ++thread.stats.hits;
  return cache.last;
}

CachedCall* cache_find(std::uint32_t op_index, const CallKey& key) {
  auto* call = cache_find_hit(op_index, key);
  if (call == nullptr) ++thread_cache().stats.misses;
  return call;
}

CachedCall* cache_insert(std::uint32_t op_index, std::unique_ptr<CachedCall> call) {
  auto& thread = thread_cache();
  auto& cache = thread.ops[op_index];
  if (++cache.per_mesh[call->mesh.get()] > kCacheEntriesPerOpAndMesh) {
    evict_mesh(cache, call->mesh.get(), thread.stats);
    ++cache.per_mesh[call->mesh.get()];
  }
  ++thread.stats.entries;
  const auto hash = call->hash;
  return cache.last = cache.calls.emplace(hash, std::move(call))->second.get();
}

CacheStats cache_stats() { return thread_cache().stats; }

void clear_cache() {
  // The destructors of cached meshes may run code that asks for the cache: take the entries out first.
  auto entries = std::move(thread_cache().ops);
  thread_cache().ops.clear();
  thread_cache().stats.entries = 0;
}

}  // namespace dtensor
