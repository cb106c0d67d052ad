// Learning rate schedules against their formulas, and options that they refuse.
#include "dtensor/optim/optimizer.h"

#include <gtest/gtest.h>

#include <cmath>

#include "support/errors.h"

namespace {

using dtensor::LearningRate;
using dtensor::test::error_of;

TEST(LearningRate, MatchesTheFormulas) {
  for (const std::int64_t steps : {1, 4, 10}) {
    for (std::int64_t step = 0; step < 2 * steps; ++step) {
      const double part = std::min(1.0, static_cast<double>(step) / static_cast<double>(steps));
      EXPECT_EQ(LearningRate::constant(0.5)(step), 0.5);
      EXPECT_DOUBLE_EQ(LearningRate::linear(0.5, steps, 0.1)(step), 0.5 - 0.4 * part);
      EXPECT_NEAR(LearningRate::cosine(0.5, steps, 0.1)(step), 0.1 + 0.2 * (1 + std::cos(M_PI * part)), 1e-15);
    }
  }
  const auto wsd = LearningRate::wsd(1, 10, 4);
  const double expected[] = {1, 1, 1, 1, 1, 1, 1, 0.75, 0.5, 0.25, 0, 0};
  for (std::int64_t step = 0; step < 12; ++step) EXPECT_DOUBLE_EQ(wsd(step), expected[step]) << step;
}

TEST(LearningRate, WarmsUpBeforeAnySchedule) {
  const auto rate = LearningRate([](std::int64_t step) { return 8.0 / static_cast<double>(step + 1); }).after_warmup(3);
  const double expected[] = {2, 4, 6, 8, 4, 8.0 / 3};
  for (std::int64_t step = 0; step < 6; ++step) EXPECT_DOUBLE_EQ(rate(step), expected[step]) << step;
  EXPECT_EQ(LearningRate::constant(2).after_warmup(0)(0), 2);
}

TEST(LearningRate, RefusesInvalidSchedules) {
  EXPECT_NE(error_of([] { LearningRate::linear(1, 0); }).find("got 0 steps"), std::string::npos);
  EXPECT_NE(error_of([] { LearningRate::wsd(1, 3, 4); }).find("a decay of 4 steps in a run of 3"), std::string::npos);
  EXPECT_NE(error_of([] { LearningRate::constant(1)(-1); }).find("step -1"), std::string::npos);
  EXPECT_NE(error_of([] { LearningRate(LearningRate::Function()); }).find("expected a function"), std::string::npos);
}

}  // namespace
