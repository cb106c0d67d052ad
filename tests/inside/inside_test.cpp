// The example inside: equal losses on any mesh, skipped steps at overflow, and a text for each diagnosis.
#include "inside/inside.h"

#include <gtest/gtest.h>

#include <cmath>

#include "dtensor/launch.h"

namespace {

inside::Report on(int ranks, const inside::Flags& flags) {
  inside::Report report;
  dtensor::run_local(ranks, [&](const dtensor::Communicator& world) {
    const auto mine = inside::train(world, at::kCPU, flags);
    if (world.rank() == 0) report = mine;
  });
  return report;
}

TEST(Inside, LossesAreEqualOnEveryMesh) {
  const auto one = on(1, {}), two = on(2, {}), four = on(4, {}), kept = on(2, {.cpu_offload = true});
  EXPECT_LT(one.losses.back(), one.losses.front() / 2);
  for (std::size_t i = 0; i < one.losses.size(); ++i) {
    for (const auto* other : {&two, &four, &kept}) EXPECT_NEAR(other->losses[i], one.losses[i], 1e-4 * one.losses[0]);
  }
  EXPECT_EQ(one.skipped, 0);
  EXPECT_EQ(one.scale, 1);
}

TEST(Inside, ReportHasExplanationAndCommTable) {
  const auto report = on(4, {.steps = 2});
  EXPECT_NE(report.explanation.find("aten::linear"), std::string::npos) << report.explanation;
  for (const char* collective : {"all_gather", "reduce_scatter", "all_reduce"}) {
    EXPECT_NE(report.comm_table.find(collective), std::string::npos) << report.comm_table;
  }
}

// A gradient scaled by 2^32 overflows half: all ranks skip steps until it fits.
TEST(Inside, StepsWithOverflowAreSkipped) {
  const auto report = on(2, {.steps = 40, .loss_scale = 4294967296.0});
  EXPECT_GT(report.skipped, 0);
  EXPECT_LT(report.skipped, 30);
  EXPECT_EQ(report.scale, std::ldexp(1.0, 32 - report.skipped));
  EXPECT_EQ(report.losses[0], report.losses[1]);
  EXPECT_LT(report.losses.back(), report.losses.front());
}

}  // namespace
