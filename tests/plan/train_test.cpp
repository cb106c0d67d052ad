// A plan that `train --plan-search` writes is a plan that `train --plan` runs.
#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>

#include "dtensor/launch.h"
#include "train/layouts/compare.h"
#include "train/layouts/search.h"
#include "train/run.h"

namespace plan {
namespace {

const train::Corpus& corpus() {
  static const auto text = train::Corpus::read({}, 64);
  return text;
}

train::Options options() {
  train::Options o;
  o.device = "cpu", o.ranks = 2, o.batch = 8, o.seq = 64, o.hidden = 64, o.layers = 2, o.steps = 3;
  return o;
}

dtensor::HardwareModel hardware(double bandwidth) {
  dtensor::HardwareModel h;
  h.name = "test";
  h.rates = {{"product", {{1, 1e11}}}, {"attention", {{1, 1e11}}}, {"norm", {{1, 1e10}}}, {"elementwise", {{1, 1e10}}}};
  h.operator_seconds = 1e-6;
  h.levels = {{"core", 1 << 20, 1e-6, bandwidth}};
  return h;
}

std::string write(const std::string& name, const std::string& text) {
  const std::string path = testing::TempDir() + name;
  std::ofstream(path) << text;
  return path;
}

TEST(TrainPlan, RunsAndEqualsOneDevice) {
  auto o = options();
  o.plan_search = write("hardware.json", hardware(1e9).json());
  o.plan_out = testing::TempDir() + "plan.json";
  testing::internal::CaptureStdout();
  ASSERT_EQ(train::report_search(o, corpus()), 0);
  const std::string table = testing::internal::GetCapturedStdout();
  EXPECT_NE(table.find("-> "), std::string::npos) << table;
  o.plan = o.plan_out;
  const auto planned = train::with_plan(o);
  ASSERT_TRUE(planned.mesh);
  EXPECT_EQ(planned.mesh->size(), 2);
  std::vector<double> losses;
  dtensor::run_local(2, [&](const dtensor::Communicator& world) {
    const auto records = train::train_on_mesh(world, planned, corpus(), {});
    if (world.rank() == 0) losses = train::losses(records);
  });
  const auto reference = train::losses(train::train_on_one_device(options(), corpus(), 0));
  ASSERT_EQ(losses.size(), reference.size());
  for (std::size_t i = 0; i < losses.size(); ++i) EXPECT_NEAR(losses[i], reference[i], 1e-4);
}

// Slow links make tensor parallelism, which communicates activations in each layer, the slowest of the layouts.
TEST(TrainPlan, SlowLinksChangeTheOrder) {
  auto o = options();
  o.batch = 64;
  const auto seconds = [&](dtensor::ParallelLayout layout, double bandwidth) {
    return train::estimate_layout(train::with_layout(o, layout), corpus(), hardware(bandwidth)).seconds;
  };
  const dtensor::ParallelLayout data{.replicate = 2}, tensor{.tp = 2};
  const double fast = seconds(tensor, 1e12) - seconds(data, 1e12), slow = seconds(tensor, 1e7) - seconds(data, 1e7);
  EXPECT_GT(slow, fast);
  EXPECT_GT(slow, 0);
}

TEST(TrainPlan, UnreadableFilesAreNamed) {
  auto o = options();
  o.plan = "/no/plan.json";
  EXPECT_THROW(train::with_plan(o), train::UsageError);
  o.plan = write("other.json", "{\"mesh\": 3}");
  try {
    train::with_plan(o);
    FAIL();
  } catch (const train::UsageError& error) {
    EXPECT_NE(std::string(error.what()).find("other.json is not a plan"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace plan
