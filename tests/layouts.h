// Meshes, coordinates and placements for the placement and redistribution tests.
#pragma once

#include <ATen/core/DimVector.h>

#include <algorithm>
#include <set>
#include <vector>

#include "dtensor/placement.h"
#include "placement/mesh_info.h"

namespace dtensor::test {

using Shape = std::vector<std::int64_t>;

inline const std::vector<Shape>& mesh_shapes() {
  static const std::vector<Shape> shapes{{1}, {2}, {3}, {2, 2}, {2, 3}, {2, 2, 2}};
  return shapes;
}

inline MeshLayout layout_of(const Shape& shape) {
  MeshLayout layout{shape, {}, {}};
  std::int64_t size = 1;
  for (const std::int64_t extent : shape) size *= extent;
  for (std::int64_t rank = 0; rank < size; ++rank) layout.ranks.push_back(rank);
  return layout;
}

inline std::vector<Coordinate> all_coordinates(const Shape& shape) {
  const MeshLayout layout = layout_of(shape);
  std::vector<Coordinate> all;
  for (std::int64_t i = 0; i < layout.size(); ++i) all.push_back(coordinate_of_index(layout, i));
  return all;
}

inline MeshRef mesh_of(const Shape& shape, std::int64_t rank = 0) {
  return c10::make_intrusive<MeshInfo>(layout_of(shape), rank, c10::DeviceType::CPU);
}

// All lists of `ndim` entries out of `choices`.
inline std::vector<Placements> all_lists(const std::vector<Placement>& choices, std::size_t ndim) {
  std::vector<Placements> lists{{}};
  for (std::size_t axis = 0; axis < ndim; ++axis) {
    std::vector<Placements> longer;
    for (const Placements& list : lists) {
      for (const Placement& p : choices) {
        longer.push_back(list);
        longer.back().push_back(p);
      }
    }
    lists = std::move(longer);
  }
  return lists;
}

// Sizes of `parts` parts, some of them empty, that add up to n.
template <class Random>
std::vector<std::int64_t> random_cut(std::int64_t n, std::int64_t parts, Random& random) {
  std::vector<std::int64_t> cuts{0, n}, sizes;
  for (std::int64_t i = 1; i < parts; ++i) {
    cuts.push_back(static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(n + 1)));
  }
  std::sort(cuts.begin(), cuts.end());
  for (std::size_t i = 1; i < cuts.size(); ++i) sizes.push_back(cuts[i] - cuts[i - 1]);
  return sizes;
}

// Replaces a third of the Shard placements by RaggedShard, at most one per dimension, and a third by ZigzagShard, some
// with several pieces.
template <class Sizes, class Random>
Placements replace_some_shards_of(Placements placements, const Sizes& sizes, at::IntArrayRef mesh, Random& random) {
  std::set<std::int64_t> ragged;
  for (std::size_t axis = 0; axis < placements.size(); ++axis) {
    const Placement p = placements[axis];
    const auto kind = random() % 3;
    if (p.kind() != Placement::Kind::shard || kind == 0) continue;
    if (kind == 1) {
      placements[axis] = ZigzagShard(p.dim(), random() % 4 == 0 ? 2 : 1);
    } else if (ragged.insert(p.dim()).second) {
      placements[axis] = RaggedShard(p.dim(), random_cut(sizes[static_cast<std::size_t>(p.dim())], mesh[axis], random));
    }
  }
  return placements;
}

}  // namespace dtensor::test
