// The load of experts in a dry run, whose tokens have no scores.
#pragma once

namespace dtensor {

// DryRunOptions::expert_load, current during a dry run (ScopedValue).
struct SimulatedExpertLoad {
  double heaviest = 1;
};

}  // namespace dtensor
