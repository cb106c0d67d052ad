// The global indices of a local tensor along each dimension.
#pragma once

#include <ATen/core/DimVector.h>

#include <vector>

#include "internal/shard_segments.h"
#include "placement/spec.h"

namespace dtensor {

struct GlobalRegion {
  at::DimVector sizes;             // global sizes
  std::vector<Segments> segments;  // one per dimension, in local order

  at::DimVector local_sizes() const;
};

// The region at a coordinate. Throws for Partial, since a sum of random numbers has another distribution.
GlobalRegion region_of(at::IntArrayRef sizes, const Placements& placements, at::IntArrayRef mesh_shape,
                       at::IntArrayRef coordinate);
// The region of this rank, which must be in the mesh.
GlobalRegion region_of(const TensorSpec& spec);

}  // namespace dtensor
