// Keys and values of the tokens before.
#include "dtensor/nn/kv_cache.h"

#include <ATen/ATen.h>

#include "dtensor/tensor.h"

namespace dtensor::nn {

KVCache::KVCache(std::int64_t layers, std::int64_t capacity)
    : entries_(static_cast<std::size_t>(layers)), capacity_(capacity) {
  TORCH_CHECK(layers > 0 && capacity > 0, "KVCache: ", layers, " layers of ", capacity, " tokens; both at least 1");
}

std::size_t KVCache::position(std::int64_t layer) const {
  TORCH_CHECK(layer >= 0 && layer < layers(), "KVCache: layer ", layer, " of ", layers());
  return static_cast<std::size_t>(layer);
}

std::int64_t KVCache::bytes() const {
  std::int64_t sum = 0;
  for (const Entry& e : entries_) {
    if (e.keys.defined()) sum += static_cast<std::int64_t>(e.keys.nbytes() + e.values.nbytes());
  }
  return sum;
}

std::pair<at::Tensor, at::Tensor> KVCache::append(std::int64_t layer, const at::Tensor& keys,
                                                  const at::Tensor& values) {
  TORCH_CHECK(!at::GradMode::is_enabled() || !(keys.requires_grad() || values.requires_grad()),
              "KVCache: what it keeps has no gradient; generate under at::NoGradGuard, train without a cache");
  const at::NoGradGuard no_grad;
  Entry& e = entries_[position(layer)];
  const std::int64_t n = keys.size(2);
  TORCH_CHECK(length_ + n <= capacity_, "KVCache: ", length_, " tokens and ", n, " more are beyond its capacity of ",
              capacity_);
  const auto make = [&](const at::Tensor& like) {
    return at::empty({like.size(0), like.size(1), capacity_, like.size(3)}, like.options());
  };
  if (!e.keys.defined()) e.keys = make(keys), e.values = make(values);
  TORCH_CHECK(e.keys.size(0) == keys.size(0) && e.keys.size(1) == keys.size(1), "KVCache: keys of sizes ", keys.sizes(),
              " for a cache of sizes ", e.keys.sizes());
  e.keys.narrow(2, length_, n).copy_(keys);
  e.values.narrow(2, length_, n).copy_(values);
  return {e.keys.narrow(2, 0, length_ + n), e.values.narrow(2, 0, length_ + n)};
}

void KVCache::truncate(std::int64_t length) {
  TORCH_CHECK(length >= 0 && length <= length_, "KVCache: truncate to ", length, " of ", length_, " tokens");
  length_ = length;
}

void KVCache::set_layout(std::int64_t layer, const DeviceMesh& mesh, Placements placements, std::int64_t batch,
                         std::int64_t heads) {
  Entry& e = entries_[position(layer)];
  e.mesh = mesh;
  e.placements = std::move(placements);
  e.batch = batch, e.heads = heads;
}

at::Tensor KVCache::whole(const Entry& e, const at::Tensor& kept) const {
  TORCH_CHECK(kept.defined(), "KVCache: nothing was appended yet");
  const at::Tensor seen = kept.narrow(2, 0, length_);
  if (!e.mesh) return seen;
  return DTensor::from_local(seen, e.mesh, e.placements, {e.batch, e.heads, length_, kept.size(3)});
}

at::Tensor KVCache::keys(std::int64_t layer) const {
  return whole(entries_[position(layer)], entries_[position(layer)].keys);
}
at::Tensor KVCache::values(std::int64_t layer) const {
  return whole(entries_[position(layer)], entries_[position(layer)].values);
}

}  // namespace dtensor::nn
