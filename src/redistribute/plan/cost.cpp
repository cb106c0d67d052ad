// The constants of the cost model and its three formulas.
#include "redistribute/plan/cost.h"

#include <bit>

namespace dtensor {
namespace {

constexpr double kLatencySecondsPerDoubling = 1e-6;
// An all_reduce has two phases, the second without a new rendezvous: more expensive than one collective, cheaper than
// two.
constexpr double kAllReduceLatencyFactor = 1.5;

// Uses an integer logarithm, so that the result is equal on every machine.
double start(std::int64_t group) {
  return kLatencySeconds + kLatencySecondsPerDoubling * std::bit_width(static_cast<std::uint64_t>(group - 1));
}

EdgeCost cost(double starts, std::int64_t group, std::int64_t bytes) {
  return {starts * start(group) + static_cast<double>(bytes) / kBytesPerSecond, bytes};
}

}  // namespace

EdgeCost exchange_cost(std::int64_t elements, AxisMask axes, const TensorGeometry& geometry) {
  return cost(1, geometry.group_size(axes), elements * geometry.itemsize);
}

EdgeCost all_reduce_cost(std::int64_t elements, AxisMask axes, const TensorGeometry& geometry) {
  const std::int64_t group = geometry.group_size(axes);
  return cost(kAllReduceLatencyFactor, group, 2 * elements * geometry.itemsize * (group - 1) / group);
}

EdgeCost reduce_scatter_cost(std::int64_t elements, AxisMask axes, const TensorGeometry& geometry) {
  const std::int64_t group = geometry.group_size(axes);
  return cost(1, group, (group - 1) * elements * geometry.itemsize);
}

}  // namespace dtensor
