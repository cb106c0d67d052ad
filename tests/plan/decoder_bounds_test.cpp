// Bounds of a search: below the costs of any layout, and close enough that the search finds the fastest.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <map>

#include "plan/any_hardware.h"
#include "plan/decoder_cost.h"
#include "plan/small_model.h"
#include "support/draws.h"

namespace plan {
namespace {

using dtensor::test::one_of;

const std::vector<ParallelLayout>& some_layouts() {
  static const std::vector<ParallelLayout> all = {
      {.shard = 8, .bf16 = true},
      {.shard = 4, .tp = 2, .recompute = Recomputation::full, .bf16 = true},
      {.replicate = 2, .shard = 2, .cp = 2, .microbatches = 4, .bf16 = true},
      {.pp = 2, .shard = 2, .tp = 2, .microbatches = 4, .recompute = Recomputation::full, .bf16 = true},
      {.pp = 2, .shard = 4, .microbatches = 4},
      {.shard = 8, .microbatches = 2, .bf16 = true, .reshard = false, .offload = true}};
  return all;
}

TEST(DecoderCost, BoundsAreBelowTheCosts) {
  const auto work = small_model(6);
  const auto program = planned_decoder(work, hardware());
  for (const auto& layout : some_layouts()) {
    ASSERT_EQ(program.reject(layout), "") << layout.str();
    const auto bound = program.bound(layout), cost = program.cost(layout);
    EXPECT_LE(bound.seconds, cost.seconds) << layout.str();
    EXPECT_LE(bound.peak_bytes, cost.peak_bytes) << layout.str();
    EXPECT_GT(bound.seconds, 0.5 * cost.seconds) << layout.str();
    EXPECT_NE(cost.explanation.find("MFU"), std::string::npos);
  }
}

// Dense layers, experts, or latent attention with experts behind a dense layer.
Workload any_small_model() {
  auto work = small_model(one_of<std::int64_t>({2, 4, 5}));
  auto& c = work.model;
  work.sequence = one_of<std::int64_t>({64, 8192, 16384});
  c.ffn = one_of<std::int64_t>({512, 4096});
  const int kind = one_of({0, 1, 2});
  if (kind == 0) return work;
  auto& moe = c.experts.emplace();
  moe.router = {.experts = one_of<std::int64_t>({8, 64}), .top_k = one_of<std::int64_t>({1, 4})};
  moe.ffn = one_of<std::int64_t>({128, 2048});
  c.layer.assign(static_cast<std::size_t>(c.layers), {.experts = true});
  if (kind == 1) return work;
  c.layer[0].experts = false;
  moe.shared_ffn = 256;
  c.kv_heads = c.heads;
  c.latent = nn::LatentAttention{.kv_rank = 64, .rope_size = 16, .nope_size = 16, .value_size = 24};
  c.head_size = 32;
  c.ropes[0].size = 16;
  return work;
}

std::string text_of(const Workload& work) {
  const auto& c = work.model;
  const auto experts = c.experts ? fmt::format("{} experts of {}", c.experts->router.experts, c.experts->ffn) : "dense";
  return fmt::format("{} layers, {} tokens, ffn {}, {}, {}", c.layers, work.sequence, c.ffn, experts,
                     c.latent ? "latent attention" : "attention");
}

// In any order: each cost may raise the bounds of the layouts after it.
void bounds_are_below_the_costs() {
  const auto work = any_small_model();
  const auto program = planned_decoder(work, any_hardware());
  auto all = enumerate_layouts({.ranks = 8,
                                .max_pp = 2,
                                .max_tp = 2,
                                .max_ep = work.model.experts ? 8 : 1,
                                .microbatches = {1, 4},
                                .bf16 = {one_of({true, false})},
                                .reshard = {true, false},
                                .accumulate_sharded = {true, false},
                                .offload = {true, false},
                                .float8 = {one_of({true, false, false})},
                                .bf16_parameters = {true, false},
                                .optimizers = {one_of<std::string>({"adamw", "adamw", "muon"})}});
  std::erase_if(all, [&](const auto& l) { return !program.reject(l).empty(); });
  for (int run = 0; run < 8; ++run) {
    const auto& l = all[*rc::gen::inRange<std::size_t>(0, all.size())];
    const auto bound = program.bound(l), cost = program.cost(l);
    const double seconds = bound.seconds / cost.seconds;
    const double bytes = static_cast<double>(bound.peak_bytes) / static_cast<double>(cost.peak_bytes);
    if (seconds < 1.01 && bytes < 1.01) continue;
    RC_LOG() << l.str() << ": " << seconds << " of the time, " << bytes << " of the memory, " << text_of(work);
    RC_FAIL("the bound is above the cost");
  }
}

TEST(DecoderCost, LearnedBoundsAreBelowTheCosts) {
  dtensor::test::check_property("bounds are below the costs of any layout", bounds_are_below_the_costs, 4);
}

// A cost does not bound layouts that free more or gather nothing. Casts of weights do not count as activations.
TEST(DecoderCost, BoundsKnowWhatDoesNotGrowWithTheRows) {
  auto experts = small_model(4);
  experts.sequence = 8192;
  experts.model.experts.emplace().router = {.experts = 64, .top_k = 1};
  experts.model.experts->ffn = 2048;
  experts.model.layer.assign(4, {.experts = true});
  auto few_tokens = small_model(4);
  few_tokens.sequence = 64;
  for (const auto& work : {few_tokens, experts}) {
    const auto program = planned_decoder(work, hardware());
    for (const auto& layout : std::vector<ParallelLayout>{{.shard = 8, .bf16 = true, .reshard = false},
                                                          {.shard = 8, .bf16 = true},
                                                          {.replicate = 8, .bf16 = true, .reshard = false},
                                                          {.replicate = 8, .bf16 = true}}) {
      const auto bound = program.bound(layout), cost = program.cost(layout);
      EXPECT_LE(bound.seconds, 1.001 * cost.seconds) << layout.str();
      EXPECT_LE(bound.peak_bytes, cost.peak_bytes) << layout.str();
    }
  }
}

// Of schedules whose forward passes all come before the first gradients, and of ranks with several stages.
TEST(DecoderCost, BoundsKnowWhatStagesKeep) {
  auto work = small_model(32);
  work.batch = 8, work.sequence = 1024, work.model.ffn = 2048;
  auto few_tokens = work;
  few_tokens.sequence = 64;
  for (const auto& w : {work, few_tokens}) {
    const auto program = planned_decoder(w, hardware());
    for (const auto& layout : std::vector<ParallelLayout>{
             {.pp = 4, .shard = 2, .microbatches = 4, .bf16 = true},
             {.pp = 4, .shard = 2, .microbatches = 4, .bf16 = true, .schedule = "gpipe"},
             {.pp = 2, .shard = 2, .microbatches = 2, .bf16 = true},
             {.pp = 2, .shard = 2, .microbatches = 4, .bf16 = true, .schedule = "interleaved", .chunks = 4}}) {
      ASSERT_EQ(program.reject(layout), "") << layout.str();
      const auto bound = program.bound(layout), cost = program.cost(layout);
      EXPECT_LE(bound.seconds, cost.seconds) << layout.str();
      EXPECT_LE(bound.peak_bytes, cost.peak_bytes) << layout.str();
    }
  }
}

// Models without experts have no collectives of experts, whose latencies would add up where nothing overlaps.
TEST(DecoderCost, BoundsOfDenseModelsHaveNoLatenciesOfExperts) {
  auto work = small_model(8);
  work.batch = 8, work.sequence = 64;
  auto slow = hardware();
  slow.asynchronous = false;
  slow.levels = {{"node", 8, 1e-4, 1e11}};
  const auto program = planned_decoder(work, slow);
  for (const auto& layout : std::vector<ParallelLayout>{{.shard = 8}, {.replicate = 8}}) {
    EXPECT_LE(program.bound(layout).seconds, program.cost(layout).seconds) << layout.str();
  }
}

// With few tokens, gathers and reductions of experts take longer than what computes beside them.
TEST(DecoderCost, BoundsKnowExposedCommunicationOfExperts) {
  auto work = small_model(12);
  work.batch = 64, work.sequence = 512;
  work.model.experts.emplace().router = {.experts = 16, .top_k = 2};
  work.model.experts->ffn = 1024;
  work.model.layer.assign(12, {.experts = true});
  const auto program = planned_decoder(work, hardware());
  for (const auto& layout :
       std::vector<ParallelLayout>{{.shard = 32, .bf16 = true},
                                   {.shard = 32, .ep = 4, .recompute = Recomputation::full, .bf16 = true},
                                   {.shard = 32, .ep = 2, .microbatches = 2, .bf16 = true, .reshard = false},
                                   {.shard = 32, .ep = 2, .microbatches = 2, .bf16 = true, .accumulate_sharded = false},
                                   {.replicate = 32, .ep = 2, .bf16 = true}}) {
    ASSERT_EQ(program.reject(layout), "") << layout.str();
    const auto bound = program.bound(layout), cost = program.cost(layout);
    EXPECT_LE(bound.seconds, cost.seconds) << layout.str();
    EXPECT_GT(bound.seconds, 0.85 * cost.seconds) << layout.str();
  }
}

// One layer with experts behind a dense one, which keeps more.
TEST(DecoderCost, BoundsKnowDenseFirstLayers) {
  auto work = small_model(2);
  work.sequence = 8192, work.model.ffn = 4096;
  work.model.experts.emplace().router = {.experts = 64, .top_k = 1};
  work.model.experts->ffn = 128;
  work.model.layer = {{}, {.experts = true}};
  const auto program = planned_decoder(work, hardware());
  const ParallelLayout layout{.pp = 2, .shard = 4, .microbatches = 4};
  EXPECT_LE(program.bound(layout).peak_bytes, program.cost(layout).peak_bytes);
}

// All layouts are run; the search runs those that its bounds leave, with any hardware and limit of memory. Bounds,
// which learn from the costs of other layouts, stay bounds.
void search_finds_the_fastest() {
  const auto work = small_model(4);
  const auto program = planned_decoder(work, any_hardware());
  const auto all = enumerate_layouts({.ranks = 4,
                                      .max_pp = 2,
                                      .max_tp = 1,
                                      .microbatches = {1, 4},
                                      .schedules = {"1f1b", "interleaved"},
                                      .reshard = {true, false},
                                      .accumulate_sharded = {true, false}});
  std::map<std::string, LayoutCost> costs;
  for (const auto& layout : all) {
    if (program.reject(layout).empty()) costs[layout.str()] = program.cost(layout);
  }
  for (const auto& layout : all) {
    if (!costs.contains(layout.str())) continue;
    const auto bound = program.bound(layout), cost = costs.at(layout.str());
    if (bound.seconds < 1.01 * cost.seconds && bound.peak_bytes < cost.peak_bytes / 100 * 101) continue;
    RC_LOG() << layout.str() << ": bounds " << bound.seconds << " s, " << bound.peak_bytes << " bytes, costs "
             << cost.seconds << " s, " << cost.peak_bytes << " bytes";
    RC_FAIL("the bound is above the cost");
  }
  std::vector<std::int64_t> peaks;
  for (const auto& [layout, cost] : costs) peaks.push_back(cost.peak_bytes);
  std::sort(peaks.begin(), peaks.end());
  const SearchLimits limits{.memory_bytes = peaks[peaks.size() / one_of<std::size_t>({2, 4, 8})], .tolerance = 0.01};
  double best = 1e9;
  for (const auto& [layout, cost] : costs) {
    if (cost.peak_bytes <= limits.memory_bytes) best = std::min(best, cost.seconds);
  }
  auto known = program;
  known.cost = [&](const ParallelLayout& l) { return costs.at(l.str()); };
  const auto found = search_layouts(all, known, limits).fitting;
  RC_ASSERT(!found.empty());
  RC_ASSERT(found.front().cost.seconds <= 1.02 * best || (RC_LOG() << found.front().layout.str(), false));
}

TEST(DecoderCost, SearchFindsTheFastest) {
  dtensor::test::check_property("the search is within 2% of all layouts", search_finds_the_fastest, 1);
}

}  // namespace
}  // namespace plan
