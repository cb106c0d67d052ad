// Mesh layouts: checks, and the coordinate of a world rank.
#include "placement/mesh_info.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cstdlib>
#include <unordered_set>

namespace dtensor {
namespace {

void check_layout(const MeshLayout& layout) {
  std::int64_t size = 1;
  for (const std::int64_t extent : layout.shape) {
    TORCH_CHECK(extent >= 1, "expected at least one rank in each mesh dimension, got shape ",
                c10::IntArrayRef(layout.shape));
    size *= extent;
  }
  TORCH_CHECK(size == layout.size(), "a mesh of shape ", c10::IntArrayRef(layout.shape), " needs ", size,
              " ranks, got ", layout.size(), ": ", c10::IntArrayRef(layout.ranks));
  TORCH_CHECK(layout.names.empty() || layout.names.size() == layout.shape.size(), "a mesh of shape ",
              c10::IntArrayRef(layout.shape), " needs one name per dimension, or none; got ", layout.names.size());
  const std::unordered_set<std::int64_t> distinct(layout.ranks.begin(), layout.ranks.end());
  TORCH_CHECK(distinct.size() == layout.ranks.size(), "a rank occurs twice in the mesh ",
              c10::IntArrayRef(layout.ranks));
  const std::unordered_set<std::string> names(layout.names.begin(), layout.names.end());
  TORCH_CHECK(names.size() == layout.names.size(), "a mesh dimension name occurs twice");
}

MeshLayout checked(MeshLayout layout) {
  check_layout(layout);
  return layout;
}

}  // namespace

std::int64_t ranks_along(c10::IntArrayRef mesh_shape, AxisMask axes) {
  std::int64_t ranks = 1;
  for (std::size_t a = 0; a < mesh_shape.size(); ++a) ranks *= has_axis(axes, a) ? mesh_shape[a] : 1;
  return ranks;
}

Coordinate coordinate_along(c10::IntArrayRef mesh_shape, AxisMask axes, std::int64_t index, Coordinate at) {
  for (std::size_t a = mesh_shape.size(); a-- > 0;) {
    if (!has_axis(axes, a)) continue;
    at[a] = index % mesh_shape[a];
    index /= mesh_shape[a];
  }
  return at;
}

Coordinate coordinate_of_index(const MeshLayout& layout, std::int64_t index) {
  return coordinate_along(layout.shape, ~AxisMask{0}, index, Coordinate(layout.shape.size()));
}

std::optional<Coordinate> coordinate_of_rank(const MeshLayout& layout, std::int64_t world_rank) {
  const c10::IntArrayRef ranks = layout.ranks;
  if (ranks.size() > 1) {  // most meshes consist of evenly spaced ranks
    const auto steps = std::div(world_rank - ranks[0], ranks[1] - ranks[0]);
    const bool inside = steps.rem == 0 && steps.quot >= 0 && steps.quot < static_cast<std::int64_t>(ranks.size());
    if (inside && ranks[static_cast<std::size_t>(steps.quot)] == world_rank) {
      return coordinate_of_index(layout, steps.quot);
    }
  }
  const auto* const found = std::find(ranks.begin(), ranks.end(), world_rank);
  if (found == ranks.end()) return std::nullopt;
  return coordinate_of_index(layout, found - ranks.begin());
}

MeshInfo::MeshInfo(MeshLayout mesh_layout, std::int64_t rank, c10::DeviceType device_type,
                   c10::intrusive_ptr<const MeshInfo> compute_mesh)
    : layout(checked(std::move(mesh_layout))),
      device(device_type),
      world_rank(rank),
      is_member(coordinate_of_rank(layout, rank).has_value()),
      coordinate(coordinate_of_rank(layout, rank).value_or(Coordinate())),
      nontrivial_axes(axes_where(layout.shape.size(), [&](std::size_t a) { return layout.shape[a] > 1; })),
      compute_mesh_(std::move(compute_mesh)) {}

}  // namespace dtensor
