// The potential on ranks against one part, and the bytes of its ghosts against a formula.
#pragma once

#include <gtest/gtest.h>

#include "potential/evaluate.h"

namespace potential::test {

// float64 rows that cross ranks: the energy exchanges positions and the features of each layer. The forces return
// their gradients, except that the features of the first layer do not depend on positions.
inline void check_bytes(const Cost& cost) {
  EXPECT_EQ(cost.energy_bytes, 8 * cost.remote_ghosts * (3 + kLayers * kFeatures));
  EXPECT_EQ(cost.force_bytes, 8 * cost.remote_copies * (3 + (kLayers - 1) * kFeatures));
}

// Collective.
inline void check(const dtensor::Communicator& world, std::int64_t side, std::uint64_t seed) {
  const System system = random_system(side, seed);
  const auto wanted = evaluate_on_one_part(random_model(seed + 1), system, at::zeros_like(system.positions)).forces;
  const Model model = random_model(seed + 2);
  Cost cost;
  const Domain domain = make_domain(system, world);
  const Result ranks = evaluate(model, system, domain, wanted, &cost);
  const Result one = evaluate_on_one_part(model, system, wanted);
  EXPECT_GT(one.loss, 0);
  EXPECT_GT(one.forces.abs().max().item<double>(), 0);
  EXPECT_LT(largest_difference(ranks, one), 1e-10) << "side " << side << ", seed " << seed;
  check_bytes(cost);
  EXPECT_TRUE(world.rank() < 3 || cost.owned == 0);  // the last of four ranks has no atoms
}

}  // namespace potential::test
