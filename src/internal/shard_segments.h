// Which elements of a sharded tensor a mesh coordinate holds: what hand-written exchanges and files need to know.
#pragma once

#include <c10/util/ArrayRef.h>
#include <c10/util/SmallVector.h>

#include <cstdint>

#include "dtensor/export.h"
#include "dtensor/placement.h"

namespace dtensor {

// So many elements from this one on.
struct Segment {
  std::int64_t offset;  // global index along the dimension
  std::int64_t length;  // none is fine
  friend bool operator==(const Segment&, const Segment&) = default;
};
// In local order, which is rising. One segment (possibly empty) unless a StridedShard has no matching axes to its
// right, or where a ZigzagShard has two chunks that do not meet.
using Segments = c10::SmallVector<Segment, 2>;

// The global indices along tensor dimension `dim` (of size `n`) that `coordinate` holds.
DTENSOR_API Segments shard_segments(std::int64_t n, std::int64_t dim, const Placements& placements,
                                    c10::IntArrayRef mesh_shape, c10::IntArrayRef coordinate);

}  // namespace dtensor
