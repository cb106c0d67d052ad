// Which elements of a tensor a mesh coordinate stores, with the chunk semantics of PyTorch: n elements over m ranks
// are chunks of ceil(n / m), the last ones shorter or empty. Several axes that shard one dimension split it in turn,
// left to right. Exceptions: A StridedShard comes after the axes to its right that shard the same dimension and whose
// sizes multiply to its split factor. A RaggedShard is the outermost split of its dimension, whatever its axis. A
// ZigzagShard takes its turn like a Shard, but selects two chunks; later axes split their concatenation.
#pragma once

#include <ATen/core/DimVector.h>
#include <c10/util/SmallVector.h>

#include <vector>

#include "dtensor/placement.h"
#include "internal/shard_segments.h"
#include "placement/mesh_info.h"

namespace dtensor {

// Chunk `index` of `n` elements over `parts` ranks.
Segment chunk(std::int64_t n, std::int64_t parts, std::int64_t index);

// The order in which mesh axes split a dimension. Axes of one rank are left out, except for a RaggedShard, whose
// single part must be the full dimension. `pieces` is 1 except for a StridedShard without matching axes, or a
// ZigzagShard with a split factor. These first cut their input into `pieces` chunks, select a part of each, and store
// the concatenation.
struct SplitStep {
  std::int32_t axis;
  std::int32_t pieces;
  std::vector<std::int64_t> ragged = {};  // sizes of a RaggedShard, else empty
  bool zigzag = false;                    // a ZigzagShard, whose part is two chunks
  bool is_contiguous_range() const { return pieces == 1 && !zigzag; }
  friend bool operator==(const SplitStep&, const SplitStep&) = default;
};
using SplitOrder = c10::SmallVector<SplitStep, 4>;
SplitOrder split_order(std::int64_t dim, const Placements& placements, at::IntArrayRef mesh_shape);

Segments shard_segments(std::int64_t n, const SplitOrder& order, at::IntArrayRef mesh_shape,
                        at::IntArrayRef coordinate);

// The segments of a dimension that this rank stores; and those of each rank along `axes` through it, in communicator
// order.
Segments own_segments(const MeshInfo& mesh, std::int64_t n, std::int64_t dim, const Placements& placements);
std::vector<Segments> segments_of_ranks(const MeshInfo& mesh, std::int64_t n, std::int64_t dim,
                                        const Placements& placements, AxisMask axes);

at::DimVector local_sizes(at::IntArrayRef sizes, const Placements& placements, at::IntArrayRef mesh_shape,
                          at::IntArrayRef coordinate);

// Whether no dimension has two ragged shards, since each would be its outermost split.
bool at_most_one_ragged(const Placements& placements);

// Throws with the values unless the placements match the mesh and the tensor; returns them with non-negative dims.
Placements normalize_placements(Placements placements, std::int64_t tensor_ndim, at::IntArrayRef mesh_shape);

}  // namespace dtensor
