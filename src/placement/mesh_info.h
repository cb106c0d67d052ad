// What placement arithmetic needs of a device mesh: its layout and this rank's coordinate. The communicators are in
// mesh/mesh_impl.h, which derives from this.
#pragma once

#include <c10/core/DeviceType.h>
#include <c10/util/ArrayRef.h>
#include <c10/util/SmallVector.h>
#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace dtensor {

struct MeshLayout {
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> ranks;  // world ranks, row-major over `shape`
  std::vector<std::string> names;   // one per dimension, or empty

  std::int64_t ndim() const { return static_cast<std::int64_t>(shape.size()); }
  std::int64_t size() const { return static_cast<std::int64_t>(ranks.size()); }
  friend bool operator==(const MeshLayout&, const MeshLayout&) = default;
};

using AxisMask = std::uint32_t;  // bit i: mesh dimension i

inline bool has_axis(AxisMask axes, std::size_t axis) { return (axes >> axis & 1) != 0; }
// The axes among `count` for which `test` is true.
template <class Test>
AxisMask axes_where(std::size_t count, Test test) {
  AxisMask axes = 0;
  for (std::size_t axis = 0; axis < count; ++axis) axes |= test(axis) ? AxisMask{1} << axis : 0;
  return axes;
}
// The number of ranks of a line along `axes`.
std::int64_t ranks_along(c10::IntArrayRef mesh_shape, AxisMask axes);

using Coordinate = c10::SmallVector<std::int64_t, 4>;

// `at` moved to the `index`-th rank along `axes`, row-major.
Coordinate coordinate_along(c10::IntArrayRef mesh_shape, AxisMask axes, std::int64_t index, Coordinate at);
// The coordinate of the `index`-th entry of MeshLayout::ranks, or of the entry equal to `world_rank`, if any.
Coordinate coordinate_of_index(const MeshLayout& layout, std::int64_t index);
std::optional<Coordinate> coordinate_of_rank(const MeshLayout& layout, std::int64_t world_rank);

struct MeshInfo : c10::intrusive_ptr_target {
  MeshInfo(MeshLayout layout, std::int64_t world_rank, c10::DeviceType device,
           c10::intrusive_ptr<const MeshInfo> compute_mesh = {});

  const MeshLayout layout;
  const c10::DeviceType device;  // device of local tensors
  const std::int64_t world_rank;
  const bool is_member;            // whether world_rank is in layout.ranks
  const Coordinate coordinate;     // empty unless is_member
  const AxisMask nontrivial_axes;  // axes of more than one rank

  // Counts writes to inference tensors, which have no version counter. Equal on all ranks of the mesh.
  std::uint32_t inference_version() const { return inference_version_; }
  void bump_inference_version() const { ++inference_version_; }

  // For a mesh that only stores tensors in host memory: the mesh of the same ranks that computes with them; else null.
  const MeshInfo* compute_mesh() const { return compute_mesh_.get(); }
  // The device that tensors report: for stored tensors, the device that computes with them.
  c10::DeviceType reported_device() const { return compute_mesh_ ? compute_mesh_->device : device; }

 protected:
  c10::intrusive_ptr<const MeshInfo> compute_mesh_;

 private:
  mutable std::uint32_t inference_version_ = 0;
};

// Meshes are interned per world communicator, so equal pointers mean equal layouts.
using MeshRef = c10::intrusive_ptr<const MeshInfo>;

}  // namespace dtensor
