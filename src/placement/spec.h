// The interned description of a DTensor: mesh, placements, global sizes, strides and dtype. Tensors with equal
// descriptions share one TensorSpec, so that the decision cache compares pointers.
#pragma once

#include <ATen/core/DimVector.h>
#include <c10/core/ScalarType.h>

#include <memory>
#include <string>

#include "dtensor/placement.h"
#include "placement/mesh_info.h"

namespace dtensor {

struct TensorSpec : c10::intrusive_ptr_target {
  TensorSpec(MeshRef mesh, Placements placements, at::DimVector sizes, at::DimVector strides, c10::ScalarType dtype);

  const MeshRef mesh;
  const Placements placements;  // one per mesh dimension; dims non-negative
  const at::DimVector sizes;    // global
  const at::DimVector strides;  // global, in elements
  const c10::ScalarType dtype;

  // Derived for this rank (all sizes are zero if it is not in the mesh).
  const at::DimVector local_sizes;
  const bool has_partial;
  const bool has_shard;  // including storage shards
  const bool has_storage;

  AxisMask replicated_axes() const;  // of more than one rank
  std::int64_t dim() const { return static_cast<std::int64_t>(sizes.size()); }
  std::string str() const;  // f32[64, 1024] on [2, 2] [S(0), R]
};

using SpecPtr = c10::intrusive_ptr<const TensorSpec>;

// The interned spec with these values. Thread-safe; the table is bounded (unused specs are dropped).
SpecPtr intern_spec(const MeshRef& mesh, Placements placements, at::IntArrayRef sizes, at::IntArrayRef strides,
                    c10::ScalarType dtype);

// The same tensor with other placements.
SpecPtr with_placements(const TensorSpec& spec, Placements placements);

// The axes on which two specs of one mesh store different data and `test(placement of a, placement of b)` is true.
// Axes of one rank are ignored, since all placements are equivalent there.
template <class Test>
AxisMask differing_axes(const TensorSpec& a, const TensorSpec& b, Test test) {
  return axes_where(a.placements.size(), [&](std::size_t i) {
    const Placement &one = a.placements[i], &other = b.placements[i];
    return has_axis(a.mesh->nontrivial_axes, i) && one != other && test(one, other);
  });
}
inline bool same_data(const TensorSpec& a, const TensorSpec& b) {
  return &a == &b || differing_axes(a, b, [](const auto&, const auto&) { return true; }) == 0;
}

// Drops unused specs, and with them their meshes and communicators. Called at the end of a world.
void drop_unused_specs();
std::size_t interned_spec_count();  // number of interned specs

}  // namespace dtensor
