// The Shampoo experiment: the recorded curves on one device, and the same curve for every (replicate, shard, tp).
// Negative controls check that the comparison can fail.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "shampoo/regression.h"
#include "support/data.h"

namespace shampoo {
namespace {

std::vector<double> stored(const char* name) {
  static const nlohmann::json json =
      nlohmann::json::parse(std::ifstream(dtensor::test::data_path("oracles/optim.json")));
  return json["shampoo_regression"]["loss_before_each_step_plus_final"][name].get<std::vector<double>>();
}

std::vector<double> on(const MeshLayout& layout, const Experiment& experiment) {
  std::vector<double> curve;
  dtensor::run_local(static_cast<int>(layout.size()), [&](const dtensor::Communicator& world) {
    auto own = train(world, layout, experiment);
    if (world.rank() == 0) curve = std::move(own);
  });
  return curve;
}

// The first roots are computed at step 20. Roots of factors without full rank amplify single-precision rounding.
TEST(Regression, SingleDeviceMatchesRecorded) {
  const auto rare = train_on_one_device({.options = rare_roots()}),
             expected = stored("rederived_exact(DP, gathered FSDP)");
  ASSERT_EQ(rare.size(), expected.size());
  EXPECT_LT(deviation({rare.begin(), rare.begin() + 20}, expected), 1e-5);
  EXPECT_LT(deviation(rare, expected), 5e-2);
  EXPECT_LT(deviation(train_on_one_device({.options = frequent_roots()}), stored("freq1_start5_rederived_shards1")),
            0.2);
  EXPECT_LT(deviation(train_on_one_device({.options = no_grafting()}), stored("nograft_rederived_shards1")), 1e-4);
}

TEST(Regression, NaNCurveDiffers) {
  for (const std::vector<double>& curve :
       {std::vector<double>{NAN, 1, 1}, {1, NAN, 1}, {1, 1, NAN}, {1, INFINITY, 1}}) {
    EXPECT_FALSE(deviation(curve, {1, 1, 1}) <= 1e-5);
  }
  EXPECT_FALSE(deviation({1, 1, 1}, {1, NAN, 1}) <= 1e-5);
  EXPECT_EQ(deviation({1, 1, 1}, {1, 1, 1}), 0);
}

void expect_same(const dtensor::ShampooOptions& options, const std::vector<MeshLayout>& layouts) {
  const Experiment exact{.options = options, .dtype = at::kDouble};
  const auto reference = train_on_one_device(exact);
  for (const MeshLayout& layout : layouts) EXPECT_LT(deviation(on(layout, exact), reference), 1e-9) << layout.name;
}

TEST(Regression, EveryLayoutMatchesSingleDevice) {
  std::vector<MeshLayout> all{
      {"uneven DP", 3, 1, 1}, {"uneven SHARD", 1, 3, 1}, {"all three", 2, 2, 2}, {"TP", 1, 1, 2}};
  for (const MeshLayout& layout : layouts(4)) all.push_back(layout);
  expect_same(rare_roots(), all);
  expect_same(frequent_roots(), {all[2]});
  expect_same(no_grafting(), {all[2]});
}

TEST(Regression, SinglePrecisionIsWithinItsRoundingError) {
  for (const auto& options : {rare_roots(), no_grafting()}) {
    const Experiment single{.options = options};
    const auto reference = train_on_one_device(single);
    double spread = 0;
    for (const std::int64_t pieces : {2, 4, 8})
      spread = std::max(spread, deviation(train_on_one_device(single, pieces), reference));
    for (const MeshLayout& layout : layouts(4)) {
      EXPECT_LT(deviation(on(layout, single), reference), std::max(1e-5, 5 * spread)) << layout.name;
    }
  }
}

TEST(Regression, CreatedInAMeshScopeOrOnMeta) {
  Experiment e{.options = no_grafting(), .dtype = at::kDouble, .steps = 5};
  const auto scope = on({"", 2, 2, 1}, e);
  e.initialization = Initialization::meta;
  EXPECT_EQ(on({"", 2, 2, 1}, e), scope);
}

// Blocks of shards converge as well, along another curve; updating only the first shard does not converge.
TEST(Regression, WrongImplementationsDiffer) {
  const MeshLayout sharded{"SHARD", 1, 4, 1};
  Experiment e{.options = rare_roots()};
  const auto reference = train_on_one_device(e);
  e.method = Method::shard_blocks;
  const auto blocks = on(sharded, e);
  EXPECT_LT(deviation(blocks, stored("rederived_shard_local_4(upstream DEFAULT)")), 5e-2);
  EXPECT_GT(deviation(blocks, reference), 0.1);
  e.method = Method::first_shard_only;
  EXPECT_GT(on(sharded, e).back(), 0.5);
}

}  // namespace
}  // namespace shampoo
