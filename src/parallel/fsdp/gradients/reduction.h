// The reduction of one unit's gradients.
#pragma once

#include <vector>

#include "internal/gradient_reduction.h"
#include "parallel/fsdp/unit.h"

namespace dtensor::fsdp {

// On an axis of one rank all placements are equivalent: returns those of the reduced gradient there, so that gradients
// of several passes can be added.
Placements equivalent_placements(const Parameter& p, const DTensor& gradient);
DTensor with_equivalent_placements(const Parameter& p, const DTensor& gradient);  // without a graph

// The same gradient with sums for averages, without communication and without a graph.
DTensor as_sums(const DTensor& gradient);

// The constructor takes the unit's pending gradients and starts the reduce-scatters. start_all_reduces awaits them,
// sums over the other axes and starts the all-reduces over replicas.
struct UnitReduction : GradientReduction {
  // `arriving`: the last gradient to arrive, while its reduce hook runs.
  UnitReduction(FsdpUnit::Impl& of, const at::Tensor& arriving);
  int start_all_reduces(bool over_replicas);  // returns the number of collectives

  FsdpUnit::Impl& unit;
  std::int64_t bytes = 0;  // unreduced

 private:
  void take_pending(const at::Tensor& arriving);
  void start_scatter(Collective& scatter) const;
  void start_scatters();
  int start_sums_over(std::int64_t axis);
  const Parameter& parameter_of(const UnreducedGradient& gradient) const {
    return *parameters_[static_cast<std::size_t>(&gradient - gradients.data())];
  }

  std::vector<const Parameter*> parameters_;  // of the gradients
};

}  // namespace dtensor::fsdp
