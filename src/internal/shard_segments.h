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

// Properties of a shard that callers ask for instead of its kind.

// Whether it lists how many elements each rank stores. Then it is the outermost split of its dimension.
bool lists_sizes(const Placement& shard);
// Whether it can split a dimension of `n` elements: listed sizes must add up to `n`.
bool fits_size(const Placement& shard, std::int64_t n);
// Whether it alone gives each rank one range of the dimension, in the order of the ranks.
bool is_contiguous_split(const Placement& shard);
// Number of chunks into which `ranks` ranks cut each piece. If they are equal, so are the local sizes.
std::int64_t chunk_count(const Placement& shard, std::int64_t ranks);
// The shard if an axis to its right first splits the dimension into `parts`, and its inverse.
Placement after_split(const Placement& shard, std::int64_t parts);
Placement without_split(const Placement& shard, std::int64_t parts);

}  // namespace dtensor
