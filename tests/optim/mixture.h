// Random parameters on a mixture of meshes, some without all ranks, and the same parameters on one device.
#pragma once

#include "support/ranks.h"
// RapidCheck must be included after GoogleTest.
#include <rapidcheck.h>

namespace dtensor::test {

inline constexpr int kRegular = 3;  // Item::mesh of a regular tensor.

// Meshes over 4 ranks: all of them as a square, three of them, and two of them out of order.
inline std::vector<DeviceMesh> meshes_of(const Communicator& world) {
  return {init_device_mesh(world, at::kCPU, {2, 2}), device_mesh(world, at::kCPU, {0, 1, 2}, {3}),
          device_mesh(world, at::kCPU, {3, 1}, {2})};
}

struct Item {
  at::Tensor full;
  int mesh = 0;
  Placements placements;
};

inline Placements any_shards(Draw& draw, std::int64_t axes, std::int64_t ndim, bool storage) {
  Placements result;
  for (std::int64_t a = 0; a < axes; ++a) {
    const auto dim = draw.integer(-1, ndim - 1);
    result.push_back(dim < 0 ? Replicate() : Shard(dim).as_storage(storage && draw.coin()));
  }
  return result;
}

inline Item any_item(Draw& draw, at::ScalarType dtype, bool regular = true) {
  Item item;
  const auto ndim = draw.integer(0, 3);
  item.full = draw.normal(draw.sizes(ndim), dtype);
  if (ndim > 1 && draw.coin()) item.full = item.full.transpose(0, -1);  // Not row-major.
  item.mesh = static_cast<int>(draw.integer(0, regular ? kRegular : kRegular - 1));
  item.placements = any_shards(draw, item.mesh == 0 ? 2 : 1, ndim, true);
  return item;
}

inline std::vector<Item> any_items(Draw& draw, at::ScalarType dtype, std::int64_t most = 8, bool regular = true) {
  std::vector<Item> items;
  for (auto n = draw.integer(1, most); n > 0; --n) items.push_back(any_item(draw, dtype, regular));
  return items;
}

inline at::Tensor place(const Item& item, const at::Tensor& full, const std::vector<DeviceMesh>& meshes,
                        bool storage = true) {
  if (item.mesh == kRegular) return full.clone();
  auto placements = item.placements;
  for (auto& p : placements) p = p.as_storage(storage && p.is_storage());
  return distribute_tensor(full, meshes[static_cast<std::size_t>(item.mesh)], placements);
}

inline bool is_local_member(const at::Tensor& t) { return !is_dtensor(t) || DTensor(t).mesh().is_member(); }

inline at::Tensor full_of(const at::Tensor& t) {
  return is_dtensor(t) ? DTensor(t.detach()).full_tensor() : t.detach();
}

}  // namespace dtensor::test
