// The price of an edge: a start-up time that grows with the logarithm of the group, and the bytes that the busiest rank
// receives. Local edges are free. The constants only set how many bytes a start-up is worth; they keep the price of a
// detour at least that of the direct way, whatever the sizes (docs/design/redistribute.md).
#pragma once

#include "redistribute/plan/split_layout.h"

namespace dtensor {

constexpr double kLatencySeconds = 5e-6;  // of one message, or of a collective but for its group's size
constexpr double kBytesPerSecond = 1e10;  // into one rank

struct EdgePrice {
  double seconds = 0;
  std::int64_t bytes = 0;
};

// Exchange of shards (slice, all_gather, all_to_all): elements received by the busiest rank.
EdgePrice exchange_price(std::int64_t elements, AxisMask axes, const TensorGeometry& geometry);
// `elements`: of the whole local contribution.
EdgePrice all_reduce_price(std::int64_t elements, AxisMask axes, const TensorGeometry& geometry);
// `elements`: of the largest part that a rank keeps.
EdgePrice reduce_scatter_price(std::int64_t elements, AxisMask axes, const TensorGeometry& geometry);

}  // namespace dtensor
