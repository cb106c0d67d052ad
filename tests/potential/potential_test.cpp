// The message-passing potential on thread ranks.
#include <ATen/ATen.h>

#include "cases.h"

namespace potential::test {
namespace {

TEST(Potential, RanksEqualOnePart) {
  for (const int ranks : {1, 2, 3, 4}) {
    dtensor::run_local(ranks, [](const dtensor::Communicator& world) {
      for (const std::int64_t side : {2, 3, 4}) check(world, side, static_cast<std::uint64_t>(side));
    });
  }
}

// Forces are the negative derivatives of the energy of the full system.
TEST(Potential, ForcesMatchFiniteDifferences) {
  dtensor::run_local(2, [](const dtensor::Communicator& world) {
    const System system = random_system(3, 7);
    const at::Tensor zeros = at::zeros_like(system.positions);
    const Model model = random_model(8);
    const auto energy_at = [&](double by) {
      System moved = system;
      moved.positions = system.positions.clone();
      moved.positions[5][1] += by;
      return evaluate(model, moved, make_domain(moved, world), zeros);
    };
    const double step = 1e-5, slope = (energy_at(step).energy - energy_at(-step).energy) / (2 * step);
    EXPECT_NEAR(energy_at(0).forces[5][1].item<double>(), -slope, 1e-6);
  });
}

}  // namespace
}  // namespace potential::test
