// Per-thread cache of layouts, with all inputs of the search as key.
#include <c10/core/ScalarType.h>

#include <unordered_map>

#include "attention/strategy.h"

namespace dtensor::attention_impl {
namespace {

constexpr std::size_t kMaxCachedLayouts = 256;

struct LayoutCacheKey {
  Placements placements[3];
  at::DimVector sizes[3];
  c10::SmallVector<std::int64_t, 4> mesh;
  std::int64_t itemsize = 0;
  Pattern pattern;
  AttentionStrategy strategy = AttentionStrategy::automatic;
  friend bool operator==(const LayoutCacheKey&, const LayoutCacheKey&) = default;
};

struct LayoutCacheKeyHash {
  std::size_t operator()(const LayoutCacheKey& q) const {
    std::size_t h = static_cast<std::size_t>(q.itemsize);
    const auto mix = [&h](std::size_t value) { h = (h ^ value) * 0x9E3779B97F4A7C15U + (h >> 29); };
    for (const auto& placements : q.placements) {
      for (const Placement& p : placements) mix(p.hash());
    }
    for (const auto& sizes : q.sizes) {
      for (const std::int64_t n : sizes) mix(static_cast<std::size_t>(n));
    }
    for (const std::int64_t n : q.mesh) mix(static_cast<std::size_t>(n));
    mix(static_cast<std::size_t>(q.strategy) * 2 + q.pattern.causal);
    mix(static_cast<std::size_t>(q.pattern.window));
    for (const std::int64_t n : q.pattern.documents) mix(static_cast<std::size_t>(n));
    return h;
  }
};

LayoutCacheKey key_of(const Operands& o, const Pattern& pattern, AttentionStrategy strategy) {
  const auto& mesh = o.q->mesh->layout.shape;
  LayoutCacheKey cache_key{{o.q->placements, o.k->placements, o.v->placements},
                           {o.q->sizes, o.k->sizes, o.v->sizes},
                           {},
                           0,
                           pattern,
                           strategy};
  cache_key.mesh.append(mesh.begin(), mesh.end());
  cache_key.itemsize = static_cast<std::int64_t>(c10::elementSize(o.q->dtype));
  return cache_key;
}

}  // namespace

AttentionLayout cached_layout(const Operands& operands, const Pattern& pattern, AttentionStrategy strategy) {
  thread_local std::unordered_map<LayoutCacheKey, AttentionLayout, LayoutCacheKeyHash> cached;
  LayoutCacheKey cache_key = key_of(operands, pattern, strategy);
  const auto found = cached.find(cache_key);
  if (found != cached.end()) return found->second;
  AttentionLayout layout = search_layout(operands, pattern, strategy);
  if (cached.size() >= kMaxCachedLayouts) cached.clear();
  return cached.emplace(std::move(cache_key), std::move(layout)).first->second;
}

}  // namespace dtensor::attention_impl
