// The gradients that a unit expects before it reduces: with graphs older than the end of the last pass, and with
// parameters that are used in alternate steps.
#include "parallel_fsdp/tower.h"

namespace dtensor::test {
namespace {

// Two graphs exist at a time, as in pipeline schedules. The end of one pass must not affect the expectations of the
// other.
TEST(FsdpSchedule, UnitIsReducedOncePerPassWithSeveralGraphs) {
  on_mesh({2}, [](const DeviceMesh& mesh) {
    Tower tower(3);
    const auto unit = fully_shard(tower.list(), mesh);
    for (int step = 0; step < 3; ++step) {
      const at::Tensor first = tower.loss(sharded(input(), mesh)), second = tower.loss(sharded(input(), mesh), step);
      for (const auto& loss : {first, second}) {
        const auto before = unit.stats().reduce_scatters;
        loss.backward();
        EXPECT_EQ(unit.stats().reduce_scatters - before, 1) << "step " << step;
      }
      EXPECT_EQ(unit.stats().unreduced_bytes, 0);
      EXPECT_EQ(unit.stats().gathered_bytes, 0);
    }
  });
}

// Adapters of several tasks in one unit: the unit must not wait for parameters that only the previous step used.
TEST(FsdpSchedule, UnitIsReducedEarlyIfStepsUseDifferentParameters) {
  on_mesh({2}, [](const DeviceMesh& mesh) {
    constexpr int kBlocks = 5, kTasks = 2;
    Tower tower(kBlocks * (1 + kTasks));
    std::vector<FsdpUnit> units;
    const auto weight = [&](int i) { return tower.w[static_cast<std::size_t>(i)]; };
    for (int block = 0; block < kBlocks; ++block) {
      NamedTensors list;
      for (int k = 0; k <= kTasks; ++k) list.push_back(tower.layer(block * (1 + kTasks) + k)[0]);
      units.push_back(fully_shard(list, mesh));
    }
    fully_shard(tower.list(), mesh);  // Joins the units.
    for (int step = 0; step < 5; ++step) {
      units[0].reset_peaks();
      at::Tensor x = sharded(input(), mesh);
      for (int block = 0; block < kBlocks; ++block) {
        x = at::gelu(at::linear(x, weight(block * (1 + kTasks))));
        x = at::linear(x, weight(block * (1 + kTasks) + 1 + step % kTasks));
      }
      x.square().mean().backward();
      EXPECT_LE(units[0].stats().peak_unreduced_bytes, units[0].gradient_bytes()) << "step " << step;
    }
  });
}

// On one rank nothing is reduced, so no gradient is unreduced.
TEST(FsdpSchedule, OnOneRankNoGradientIsUnreduced) {
  on_mesh({1}, [](const DeviceMesh& mesh) {
    Tower tower(2);
    for (int i = 0; i < 2; ++i) fully_shard({tower.layer(i)[0]}, mesh);
    const auto units = units_of(tower.w);
    at::linear(at::linear(sharded(input(), mesh), tower.w[0]), tower.w[1]).square().mean().backward();
    EXPECT_EQ(units[0].stats().peak_unreduced_bytes, 0);
    EXPECT_EQ(units[0].gradient_bytes(), 0);
  });
}

}  // namespace
}  // namespace dtensor::test
