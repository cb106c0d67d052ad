// Where a local tensor sits in its global one: the global indices that it holds along each dimension.
#pragma once

#include <ATen/core/DimVector.h>

#include <vector>

#include "internal/shard_segments.h"
#include "placement/spec.h"

namespace dtensor {

struct GlobalRegion {
  at::DimVector sizes;             // global
  std::vector<Segments> segments;  // per dimension, in local order

  at::DimVector local_sizes() const;
};

// What the coordinate holds. Throws on a Partial: a sum of random numbers is not one.
GlobalRegion region_of(at::IntArrayRef sizes, const Placements& placements, at::IntArrayRef mesh_shape,
                       at::IntArrayRef coordinate);
// On this rank, which is in the mesh.
GlobalRegion region_of(const TensorSpec& spec);

}  // namespace dtensor
