// The elements of a sharded tensor at a mesh coordinate, for custom exchanges and file formats.
#pragma once

#include <c10/util/ArrayRef.h>
#include <c10/util/SmallVector.h>

#include <cstdint>

#include "dtensor/export.h"
#include "dtensor/placement.h"

namespace dtensor {

// A range of indices along a dimension.
struct Segment {
  std::int64_t offset;  // global index along the dimension
  std::int64_t length;  // may be 0
  friend bool operator==(const Segment&, const Segment&) = default;
};
// Segments in local, ascending order. There is one (possibly empty), except for a StridedShard without matching axes to
// its right, and for a ZigzagShard with two chunks that are not adjacent.
using Segments = c10::SmallVector<Segment, 2>;

// The global indices along tensor dimension `dim` (of size `n`) at `coordinate`.
DTENSOR_API Segments shard_segments(std::int64_t n, std::int64_t dim, const Placements& placements,
                                    c10::IntArrayRef mesh_shape, c10::IntArrayRef coordinate);

}  // namespace dtensor
