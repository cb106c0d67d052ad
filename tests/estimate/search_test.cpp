// The search finds the fastest layout that fits, and explains the others.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <set>

#include "dtensor/estimate.h"

namespace estimate {
namespace {

using namespace dtensor;

TEST(Layouts, AreAllProductsOfAxes) {
  const auto all = enumerate_layouts({.ranks = 16, .max_pp = 16, .max_tp = 16, .recompute = {Recomputation::none}});
  std::set<std::string> seen;
  for (const auto& layout : all) {
    EXPECT_EQ(layout.ranks(), 16);
    EXPECT_TRUE(seen.insert(layout.str()).second) << layout.str();
  }
  EXPECT_EQ(all.size(), 35u);  // 4 factors of two on 4 axes: 7 choose 3
  EXPECT_EQ(enumerate_layouts({
                                  .ranks = 6,
                                  .max_tp = 2,
                              })
                .size(),
            2u * (4 + 2));
}

// Cheap and deterministic stand-ins for dry runs.
double mixed(const ParallelLayout& l, unsigned seed) {
  return 1 + static_cast<double>((std::hash<std::string>{}(l.str()) + seed) * 2654435761u % 1000) / 100;
}

RC_GTEST_PROP(Search, FindsTheFastestThatFits, ()) {
  const auto seed = *rc::gen::arbitrary<unsigned>();
  const auto all = enumerate_layouts({.ranks = 32,
                                      .max_pp = 4,
                                      .microbatches = {1, 2, 4},
                                      .reshard = {true, false},
                                      .accumulate_sharded = {false, true}});
  std::size_t runs = 0, lines = 0;
  SearchLimits limits{.memory_bytes = *rc::gen::inRange<std::int64_t>(1, 12) * 1'000'000'000};
  limits.tolerance = *rc::gen::element(0.0, 0.02, 0.2);
  limits.progress = [&](const SearchProgress& p) {
    ++lines;
    RC_ASSERT(p.runs == runs && p.decided < p.layouts && p.layouts < all.size());
  };
  // Microbatches split the activations, and from the second on gradients accumulate. Ranks of data parallelism share
  // what is sharded.
  const auto memory = [&](ParallelLayout l) {
    const auto saved = static_cast<double>(l.microbatches + 2 * static_cast<int>(l.recompute));
    const double accumulated = (l.microbatches > 1 ? 1 : 0) + (l.accumulate_sharded ? 0 : 2) + (l.reshard ? 0 : 1) +
                               2.0 / static_cast<double>(l.shard);
    l.microbatches = 1, l.recompute = Recomputation::none;
    l.replicate = l.shard = 1, l.reshard = l.accumulate_sharded = true;
    return static_cast<std::int64_t>(1e9 * (1 + accumulated + mixed(l, seed + 1) / saved));
  };
  const PlannedProgram program{
      .reject = [](const auto& l) { return l.tp == 8 ? std::string("tp=8 does not divide 12 heads") : ""; },
      .bound =
          [&](const auto& l) {
            return LayoutCost{0.9 * mixed(l, seed), memory(l) / 2, "", ""};
          },
      .cost =
          [&](const auto& l) {
            return ++runs, LayoutCost{mixed(l, seed), memory(l), "parameters", "why"};
          }};
  const auto plan = search_layouts(all, program, limits);
  double best = 1e9;
  for (const auto& layout : all) {
    if (layout.tp != 8 && memory(layout) <= limits.memory_bytes) best = std::min(best, mixed(layout, seed));
  }
  RC_ASSERT(plan.fitting.empty() == (best == 1e9));
  if (!plan.fitting.empty()) RC_ASSERT(plan.fitting.front().cost.seconds * (1 - limits.tolerance) <= best);
  RC_ASSERT(lines == runs);
  RC_ASSERT(plan.rejected.size() == 1u);
  const auto seen = plan.fitting.size() + plan.too_large.size() + static_cast<std::size_t>(plan.slower);
  RC_ASSERT(seen + static_cast<std::size_t>(plan.rejected.begin()->second) == all.size());
  if (!plan.fitting.empty()) RC_ASSERT(runs < seen);
}

// What changes nothing is not enumerated twice.
TEST(Layouts, DifferInWhatTheyRun) {
  const auto all = enumerate_layouts({.ranks = 8,
                                      .max_pp = 4,
                                      .microbatches = {1, 4},
                                      .recompute = {Recomputation::none},
                                      .schedules = {"1f1b", "interleaved", "zb-h1"},
                                      .chunks = {2, 4},
                                      .reshard = {true, false},
                                      .accumulate_sharded = {true, false},
                                      .offload = {false, true}});
  std::set<std::string> seen;
  for (const auto& l : all) {
    EXPECT_TRUE(seen.insert(l.str()).second) << l.str();
    EXPECT_TRUE(l.accumulate_sharded || (l.pp == 1 && l.microbatches > 1)) << l.str();
    EXPECT_TRUE(l.accumulate_sharded || !l.offload) << l.str();
    EXPECT_EQ(l.chunks > 0, l.pp > 1 && l.schedule == "interleaved") << l.str();
  }
  const auto computed = enumerate_layouts({.ranks = 1,
                                           .recompute = {Recomputation::none},
                                           .bf16 = {true, false},
                                           .float8 = {false, true},
                                           .bf16_parameters = {false, true},
                                           .optimizers = {"adamw", "muon"}});
  EXPECT_EQ(computed.size(), 3u * 2 * 2);  // no parameters in bfloat16 without bf16
  for (const auto& l : computed) EXPECT_TRUE(seen.insert(l.str()).second) << l.str();
  EXPECT_TRUE(seen.contains("one rank bf16 float8 parameters=bf16 optimizer=muon"));
  EXPECT_TRUE(seen.contains("pp=2,shard=4 microbatches=4 interleaved chunks=4 reshard=false bf16"));
  EXPECT_TRUE(seen.contains("shard=8 microbatches=4 reshard=false accumulate=unsharded bf16"));
  EXPECT_TRUE(seen.contains("shard=8 microbatches=4 offload bf16"));
}

// A mesh whose variants with the least memory do not fit takes two runs: with one microbatch, and with the most.
TEST(Search, RunsTwoVariantsOfAMeshThatDoesNotFit) {
  std::size_t runs = 0;
  const PlannedProgram program{.reject = [](const auto&) { return ""; },
                               .bound =
                                   [](const auto& l) {
                                     return LayoutCost{1.0 / static_cast<double>(l.tp), 6, "", ""};
                                   },
                               .cost =
                                   [&](const auto& l) {
                                     return ++runs, LayoutCost{1, l.tp == 1 ? 1 : 100, "", ""};
                                   }};
  const auto all = enumerate_layouts({.ranks = 4, .max_replicate = 1, .microbatches = {1, 2, 4, 8}});
  const auto plan = search_layouts(all, program, {.memory_bytes = 10});
  EXPECT_EQ(plan.too_large.size(), 16u);  // tp=4 and tp=2
  EXPECT_EQ(plan.fitting.size() + static_cast<std::size_t>(plan.slower), 8u);
  EXPECT_LE(runs, 4u + 4u);
}

TEST(Search, TableNamesWhatDoesNotFit) {
  const PlannedProgram program{.reject = [](const auto&) { return ""; },
                               .bound =
                                   [](const auto&) {
                                     return LayoutCost{1, 1, "", ""};
                                   },
                               .cost =
                                   [](const auto& l) {
                                     if (l.tp == 2) TORCH_CHECK(false, "tp=2 does not run");
                                     return LayoutCost{
                                         2, l.recompute == Recomputation::full ? 50'000'000'000 : 90'000'000'000,
                                         "activations 60.0 GB", "all in products"};
                                   }};
  const SearchLimits limits{.memory_bytes = 80'000'000'000};
  const auto table = search_layouts(enumerate_layouts({.ranks = 2, .max_replicate = 1}), program, limits).table(limits);
  EXPECT_NE(table.find("->           2 s   50.0 GB  shard=2 recompute=full bf16"), std::string::npos) << table;
  EXPECT_NE(table.find("shard=2 bf16: needs 90.0 GB of 80.0 GB: activations 60.0 GB"), std::string::npos) << table;
  EXPECT_NE(table.find("2 layouts: tp=2 does not run"), std::string::npos) << table;
  EXPECT_NE(table.find("the fastest: all in products"), std::string::npos) << table;
}

}  // namespace
}  // namespace estimate
