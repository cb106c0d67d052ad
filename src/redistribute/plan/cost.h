// The cost of an edge: a latency that grows with the logarithm of the group size, and the bytes that the busiest rank
// receives. Local edges are free. The constants only set the latency in terms of bytes. They ensure that a detour
// never costs less than the direct edge, whatever the sizes (docs/design/redistribute.md).
#pragma once

#include "redistribute/plan/split_layout.h"

namespace dtensor {

constexpr double kLatencySeconds = 5e-6;  // of a message, or of a collective without the part for its group size
constexpr double kBytesPerSecond = 1e10;  // into one rank

struct EdgeCost {
  double seconds = 0;
  std::int64_t bytes = 0;
};

// Exchange of shards (slice, all_gather, all_to_all). `elements`: received by the busiest rank.
EdgeCost exchange_cost(std::int64_t elements, AxisMask axes, const TensorGeometry& geometry);
// `elements`: of the full local contribution.
EdgeCost all_reduce_cost(std::int64_t elements, AxisMask axes, const TensorGeometry& geometry);
// `elements`: of the largest part that a rank keeps.
EdgeCost reduce_scatter_cost(std::int64_t elements, AxisMask axes, const TensorGeometry& geometry);

}  // namespace dtensor
