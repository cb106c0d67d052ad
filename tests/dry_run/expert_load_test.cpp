// A skewed load of experts in a dry run: the rank of the first expert computes, receives and stores as many more rows
// as the load says.
#include <gtest/gtest.h>

#include "dtensor/dry_run.h"
#include "dtensor/mesh.h"
#include "dtensor/moe.h"
#include "dtensor/parallelize.h"
#include "dtensor/tensor.h"

namespace dry {
namespace {

using namespace dtensor;

constexpr std::int64_t kRanks = 4, kExperts = 8, kTokens = 56, kTopK = 2, kHidden = 64, kFfn = 96;

// Rows that a rank sends to the two experts of rank 0: load x mean to the first, an equal share of the rest to the
// other.
std::int64_t rows_to_rank_0(std::int64_t load) {
  const std::int64_t entries = kTokens * kTopK, heavy = load * entries / kExperts;
  return heavy + (entries - heavy) / (kExperts - 1);
}

DryRunReport run(double load, int rank) {
  return dry_run({.ranks = kRanks, .rank = rank, .expert_load = load}, [](const Communicator& world) {
    const auto mesh = init_device_mesh(world, at::kCPU, {kRanks}, {"ep"});
    MoeOptions o;
    o.hidden = kHidden, o.ffn = kFfn, o.router.experts = kExperts, o.router.top_k = kTopK;
    o.tensor = at::TensorOptions(at::kFloat).device(at::kMeta);
    MixtureOfExperts layer(o);
    apply_expert_parallel(layer, mesh.view({1, kRanks}, {"edp", "ep"}));
    parallelize(layer, mesh, {});
    layer.reset();
    StepRecorder::begin_step();
    const auto x = randn({kRanks * kTokens, kHidden}, mesh, {Shard(0)}).requires_grad_();
    layer.forward(x).sum().backward();
  });
}

std::int64_t flops(const DryRunReport& report) {
  std::int64_t sum = 0;
  for (const auto& [name, count] : report.operators) sum += count.flops;
  return sum;
}

std::int64_t exchanged(const DryRunReport& report) {
  std::int64_t bytes = 0;
  for (const auto& [key, count] : report.collectives) bytes += key.first == "all_to_all" ? count.bytes : 0;
  return bytes;
}

TEST(ExpertLoad, RowsOfTheFirstRankGrowAsTheFormulaSays) {
  const auto one = run(1, 0);
  for (const std::int64_t load : {2, 3, 4}) {
    const auto report = run(static_cast<double>(load), 0);
    const std::int64_t more = rows_to_rank_0(load) - rows_to_rank_0(1);
    ASSERT_GT(more, 0);
    // Three products in forward, and two gradients of each, of the rows of all ranks.
    EXPECT_EQ(flops(report) - flops(one), 3 * 3 * 2 * kRanks * more * kHidden * kFfn) << load;
    // Rows and their gradients from the three others; the same rows do not come back from them.
    EXPECT_EQ(exchanged(report) - exchanged(one), 2 * (kRanks - 2) * more * kHidden * 4) << load;
    const auto first = run(2, 0).peak.bytes - one.peak.bytes;
    EXPECT_GE(first, kRanks * (rows_to_rank_0(2) - rows_to_rank_0(1)) * (kHidden + kFfn) * 4);
    EXPECT_NEAR(static_cast<double>(report.peak.bytes - one.peak.bytes) / static_cast<double>(first),
                static_cast<double>(load - 1), 0.02);
  }
}

TEST(ExpertLoad, OtherRanksHaveLess) {
  EXPECT_LT(flops(run(4, 3)), flops(run(1, 3)));
  EXPECT_EQ(flops(run(1, 3)), flops(run(1, 0)));
}

// The numbers of a rank's tokens are real, those of all others do not exist: 8 million tokens are 64 MiB.
TEST(ExpertLoad, BatchesOfMillionsOfTokensNeedTheirShardsOnly) {
  const auto report = dry_run({.ranks = 128}, [](const Communicator& world) {
    const auto mesh = init_device_mesh(world, at::kCPU, {64, 2}, {"ep", "cp"});
    MoeOptions o;
    o.hidden = kHidden, o.ffn = kFfn, o.router.experts = 64, o.router.top_k = kTopK;
    o.router.choice = RouterChoice::round_robin;
    o.tensor = at::TensorOptions(at::kFloat).device(at::kMeta);
    MixtureOfExperts layer(o);
    apply_expert_parallel(layer, mesh.view({2, 64}, {"edp", "ep"}));
    parallelize(layer, mesh, {}, {.axis = "cp"});
    layer.reset();
    layer.forward(randn({64, 1 << 17, kHidden}, mesh, {Shard(0), ZigzagShard(1)}));
  });
  EXPECT_GE(flops(report), 3 * 2 * (1 << 16) * kTopK * kHidden * kFfn);
}

TEST(ExpertLoad, LessThanTheMeanIsAnError) {
  try {
    run(0.5, 0);
    FAIL();
  } catch (const c10::Error& error) {
    EXPECT_NE(std::string(error.what()).find("expected an expert_load of at least 1 (the mean load), got 0.5"),
              std::string::npos);
  }
}

}  // namespace
}  // namespace dry
