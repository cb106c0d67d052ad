// Calibration: times of operators inside of steps have the sizes of the calls, and rates merge calls of similar size.
#include "plan/measure/operator_times.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <map>

#include "dtensor/mesh.h"
#include "plan/cost/stage_step.h"

namespace plan {
namespace {

using namespace dtensor;

TEST(OperatorTimes, CallsHaveTheSizesOfTheStep) {
  const std::int64_t rows = 40, in = 50;
  const auto calls = time_operators([&] {
    const auto x = at::ones({rows, in}), first = at::ones({in, in}), second = at::ones({in, 300});
    return [=] { at::relu(at::mm(at::mm(x, first), second)); };
  });
  std::map<std::string, std::vector<OperatorTime>> by_name;
  for (const auto& call : calls) by_name[call.name].push_back(call);
  ASSERT_EQ(by_name["aten::mm"].size(), 2u);
  EXPECT_EQ(by_name["aten::mm"][0].size, 2 * rows * in * in);
  EXPECT_EQ(by_name["aten::mm"][1].size, 2 * rows * in * 300);
  ASSERT_EQ(by_name["aten::relu"].size(), 1u);
  EXPECT_EQ(by_name["aten::relu"][0].size, 2 * rows * 300 * 4);  // bytes read and written
  for (const auto& call : calls) EXPECT_GT(call.seconds, 0) << call.name;
}

// An operator that a kernel calls is part of the call around it: mean() calls sum().
TEST(OperatorTimes, NestedCallsCountOnce) {
  const auto calls = time_operators([] {
    const auto x = at::ones({100, 64}), w = at::ones({32, 64});
    return [=] { at::linear(x, w).mean() + x.sum(); };
  });
  std::map<std::string, int> counts;
  for (const auto& call : calls) ++counts[call.name];
  EXPECT_EQ(counts,
            (std::map<std::string, int>{{"aten::mm", 1}, {"aten::mean", 1}, {"aten::sum", 1}, {"aten::add", 1}}));
}

TEST(OperatorTimes, RatesMergeCallsOfSimilarSize) {
  const auto rates = rates_of({{"aten::mm", at::kFloat, 1100, 2e-6},
                               {"aten::mm", at::kFloat, 1000, 1e-6},
                               {"aten::mm", at::kFloat, 9000, 3e-6},
                               {"aten::mm", at::kBFloat16, 1000, 4e-6}});
  ASSERT_EQ(rates.size(), 2u);
  const auto& curve = rates.at("aten::mm float32");
  ASSERT_EQ(curve.size(), 2u);
  EXPECT_EQ(curve[0].size, 1050);
  EXPECT_NEAR(curve[0].rate, 2100 / 3e-6, 1);
  EXPECT_NEAR(curve[1].rate, 9000 / 3e-6, 1);
  EXPECT_EQ(rates.at("aten::mm bfloat16").size(), 1u);
}

TEST(MeasuredSteps, RunOnTheRanksOfTheLayout) {
  nn::DecoderConfig config{.vocabulary = 50, .hidden = 32, .layers = 2, .ffn = 32, .heads = 2};
  const auto seconds = measure_steps({config, 4, 8}, {.shard = 2, .microbatches = 2}, 3);
  ASSERT_EQ(seconds.size(), 3u);
  for (const double each : seconds) EXPECT_GT(each, 0);
  EXPECT_THROW(measure_steps({config, 4, 8}, {.pp = 2}, 3), c10::Error);
}

}  // namespace
}  // namespace plan
