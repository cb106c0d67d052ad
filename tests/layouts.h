// Meshes, coordinates and placements that the placement and redistribution tests run over.
#pragma once

#include <ATen/core/DimVector.h>

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

// Every list of `ndim` entries out of `choices`.
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

}  // namespace dtensor::test
