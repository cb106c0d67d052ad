// Keys and values of previous tokens.
#include "dtensor/nn/decoder.h"

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>

#include "dtensor/tensor.h"
#include "internal/aten_scopes.h"
#include "internal/bit_identical.h"

namespace dtensor::nn {
namespace {

// Cached tensors are regular tensors, usable in any grad mode, regardless of a MeshScope.
struct RegularTensorScope : NoMeshScopeGuard {
  const c10::InferenceMode no_inference{false};
  const at::NoGradGuard no_grad;
};

// Number of the first `count` tokens that are on this rank, if tokens are sharded cyclically.
std::int64_t own_count(std::int64_t count, const Communicator& sequence_group) {
  return sequence_group ? (count - sequence_group.rank() + sequence_group.size() - 1) / sequence_group.size() : count;
}

// This rank's tokens of `x`, whose first token has position `first`.
at::Tensor own_of(const at::Tensor& x, std::int64_t first, const Communicator& sequence_group) {
  if (!sequence_group) return x;
  const std::int64_t n = sequence_group.size(), skip = ((sequence_group.rank() - first) % n + n) % n;
  return x.slice(2, std::min(skip, x.size(2)), std::nullopt, n);
}

// Gathers [batch, heads, own, E] of each rank to all tokens in order.
at::Tensor in_order(const at::Tensor& own, std::int64_t length, const Communicator& sequence_group) {
  const std::int64_t n = sequence_group.size(), most = (length + n - 1) / n;
  const at::Tensor mine = at::constant_pad_nd(own, {0, 0, 0, most - own.size(2)}).contiguous();
  std::vector<at::Tensor> all;
  for (std::int64_t r = 0; r < n; ++r) all.push_back(at::empty_like(mine));
  sequence_group.all_gather(all, mine).wait();
  return at::stack(all, 3).flatten(2, 3).narrow(2, 0, length);
}

}  // namespace

KVCache::KVCache(std::int64_t layers, std::int64_t capacity, std::string sequence_axis)
    : entries_(static_cast<std::size_t>(layers)), capacity_(capacity), sequence_axis_(std::move(sequence_axis)) {
  TORCH_CHECK(layers > 0 && capacity > 0, "KVCache: expected layers > 0 and capacity > 0, got ", layers, " and ",
              capacity);
}

KVCache::KVCache(const KVCache& other)
    : entries_(other.entries_),
      capacity_(other.capacity_),
      length_(other.length_),
      sequence_axis_(other.sequence_axis_) {
  const RegularTensorScope regular;
  for (Entry& e : entries_) {
    if (!e.keys.defined()) continue;
    e.keys = e.keys.clone();
    e.values = e.values.clone();
  }
}

std::size_t KVCache::position(std::int64_t layer) const {
  TORCH_CHECK(layer >= 0 && layer < layers(), "KVCache: expected a layer in [0, ", layers(), "), got ", layer);
  return static_cast<std::size_t>(layer);
}

std::int64_t KVCache::bytes() const {
  std::int64_t sum = 0;
  for (const Entry& e : entries_) {
    if (e.keys.defined()) sum += static_cast<std::int64_t>(e.keys.nbytes() + e.values.nbytes());
  }
  return sum;
}

bool KVCache::is_kept(const Entry& e, const at::Tensor& keys, const at::Tensor& values) {
  const auto alike = [](const at::Tensor& kept, const at::Tensor& t) {
    return kept.size(0) == t.size(0) && kept.size(1) == t.size(1) && kept.size(3) == t.size(3);
  };
  TORCH_CHECK(keys.dim() == 4 && values.dim() == 4 && values.sizes().slice(0, 3) == keys.sizes().slice(0, 3),
              "KVCache: expected keys [batch, heads, n, E] and values [batch, heads, n, F], got sizes ", keys.sizes(),
              " and ", values.sizes());
  return e.keys.defined() && alike(e.keys, keys) && alike(e.values, values);
}

std::pair<at::Tensor, at::Tensor> KVCache::append(std::int64_t layer, const at::Tensor& keys,
                                                  const at::Tensor& values) {
  TORCH_CHECK(
      !at::GradMode::is_enabled() || !(keys.requires_grad() || values.requires_grad()),
      "KVCache: expected keys and values without gradients; generate under at::NoGradGuard, train without a cache");
  const at::NoGradGuard no_grad;
  Entry& e = entries_[position(layer)];
  const bool kept = is_kept(e, keys, values);
  const std::int64_t n = keys.size(2);
  TORCH_CHECK(kept || length_ == 0, "KVCache: keys of sizes ", keys.sizes(), " and values of sizes ", values.sizes(),
              e.keys.defined() ? c10::str(" for a cache of sizes ", e.keys.sizes(), " and ", e.values.sizes())
                               : c10::str(" of a layer that has none of the ", length_, " tokens before"));
  TORCH_CHECK(length_ + n <= capacity_, "KVCache: expected at most ", capacity_, " tokens, its capacity, got ", length_,
              " tokens and ", n, " more");
  const auto make = [&](const at::Tensor& like) {
    const RegularTensorScope regular;
    return at::empty({like.size(0), like.size(1), own_count(capacity_, e.sequence_group), like.size(3)},
                     like.options());
  };
  if (!kept) std::tie(e.keys, e.values) = std::pair(make(keys), make(values));
  const std::int64_t before = own_count(length_, e.sequence_group), after = own_count(length_ + n, e.sequence_group);
  e.keys.narrow(2, before, after - before).copy_(own_of(keys, length_, e.sequence_group));
  e.values.narrow(2, before, after - before).copy_(own_of(values, length_, e.sequence_group));
  return {e.keys.narrow(2, 0, after), e.values.narrow(2, 0, after)};
}

std::pair<at::Tensor, at::Tensor> KVCache::append_placed(std::int64_t layer, const at::Tensor& keys,
                                                         const at::Tensor& values) {
  const Entry& e = entries_[position(layer)];
  const auto local = [&](const at::Tensor& t) {
    const DTensor given(t);
    return e.mesh.is_member() ? given.redistribute(e.placements).to_local()
                              : at::empty({0, 0, t.size(2), t.size(3)}, t.options());
  };
  const std::int64_t length = length_ + keys.size(2);
  const auto placed = [&](const at::Tensor& seen) {
    return DTensor::from_local(seen, e.mesh, e.placements, {e.batch, e.heads, length, seen.size(3)});
  };
  const auto [all_keys, all_values] = append(layer, local(keys), local(values));
  return {placed(all_keys), placed(all_values)};
}

const Communicator& KVCache::sequence_group(std::int64_t layer) const {
  return entries_[position(layer)].sequence_group;
}

void KVCache::truncate(std::int64_t length) {
  TORCH_CHECK(length >= 0 && length <= length_, "KVCache: expected a length in [0, ", length_, "] to truncate to, got ",
              length);
  length_ = length;
}

// Uses only values that every rank knows, so that all ranks throw. If a batch of one row were split, the local sizes of
// the rank with the row would not change.
void KVCache::set_layout(std::int64_t layer, const DeviceMesh& mesh, Placements placements, std::int64_t batch,
                         std::int64_t heads) {
  Entry& e = entries_[position(layer)];
  for (std::int64_t a = 0; a < mesh.ndim(); ++a) {
    if (mesh.size(a) == 1) placements[static_cast<std::size_t>(a)] = Replicate();  // equivalent on one rank
  }
  const bool same = e.mesh && e.mesh == mesh && e.placements == placements && e.batch == batch && e.heads == heads;
  if (same) return;
  TORCH_CHECK(!e.mesh || length_ == 0, "KVCache: it has ", length_, " tokens of ", e.batch, " sequences and ", e.heads,
              " heads, ", to_string(e.placements), " on ", e.mesh.str(), ", and further ones are of ", batch,
              " sequences and ", heads, " heads, ", to_string(placements), " on ", mesh.str());
  Communicator sequence_group;
  if (!sequence_axis_.empty()) {
    const std::int64_t axis = mesh.dim(sequence_axis_);
    if (mesh.size(axis) > 1) refuse_if_bit_identical("KVCache with a sequence axis");
    const Placement& placement = placements[static_cast<std::size_t>(axis)];
    TORCH_CHECK(mesh.size(axis) == 1 || placement.is_replicate(),
                "KVCache: expected a sequence axis that replicates keys, got axis '", sequence_axis_, "' of ",
                mesh.str(), ", which splits ", placement.is_shard(0) ? "the batch" : "heads");
    if (mesh.size(axis) > 1 && mesh.is_member()) sequence_group = mesh.communicator(axis);
  }
  e = {{}, {}, mesh, std::move(placements), batch, heads, std::move(sequence_group)};
}

void KVCache::set_layout(std::int64_t layer) {
  Entry& e = entries_[position(layer)];
  if (!e.mesh) return;
  TORCH_CHECK(length_ == 0, "KVCache: it has ", length_, " tokens, ", to_string(e.placements), " on ", e.mesh.str(),
              ", but further tokens are regular tensors; truncate(0) first");
  e = {};
}

at::Tensor KVCache::full(const Entry& e, const at::Tensor& kept) const {
  TORCH_CHECK(kept.defined(), "KVCache: expected appended tokens, but the layer has none");
  const at::Tensor own = kept.narrow(2, 0, own_count(length_, e.sequence_group));
  const at::Tensor seen = e.sequence_group ? in_order(own, length_, e.sequence_group) : own;
  if (!e.mesh) return seen;
  return DTensor::from_local(seen, e.mesh, e.placements, {e.batch, e.heads, length_, kept.size(3)});
}

at::Tensor KVCache::keys(std::int64_t layer) const {
  return full(entries_[position(layer)], entries_[position(layer)].keys);
}
at::Tensor KVCache::values(std::int64_t layer) const {
  return full(entries_[position(layer)], entries_[position(layer)].values);
}

}  // namespace dtensor::nn
