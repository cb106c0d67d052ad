// Costs of decoders: extrapolated runs equal full ones, and memory and time follow the layout as they must.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <map>

#include "llm/hf/hf_config.h"
#include "plan/cost/stage_step.h"
#include "plan/decoder_cost.h"
#include "plan/small_model.h"
#include "program_data.h"
#include "support/draws.h"

namespace plan {
namespace {

using dtensor::test::one_of;

// A preset with fewer layers, all of one kind.
Workload any_preset(std::int64_t rows) {
  const auto name = one_of<std::string>({"llama3-8b", "llama3-70b", "llama3-405b", "mixtral-8x7b", "qwen3-235b-a22b"});
  auto config = llm::read_family(program_data("plan/presets/" + name)).config;
  config.layers = one_of<std::int64_t>({6, 9, 14});
  config.layer.resize(static_cast<std::size_t>(config.layers), config.layer.back());
  return {config, rows * one_of<std::int64_t>({1, 2}), one_of<std::int64_t>({2048, 8192, 32768})};
}

ParallelLayout any_layout() {
  ParallelLayout l{.pp = one_of<std::int64_t>({1, 1, 2}),
                   .replicate = one_of<std::int64_t>({1, 2}),
                   .shard = one_of<std::int64_t>({1, 4, 64}),
                   .cp = one_of<std::int64_t>({1, 1, 2}),
                   .tp = one_of<std::int64_t>({1, 2, 4}),
                   .microbatches = one_of<std::int64_t>({1, 2, 6}),
                   .recompute = one_of({Recomputation::none, Recomputation::selective, Recomputation::full}),
                   .bf16 = one_of({true, true, false}),
                   .schedule = one_of<std::string>({"1f1b", "gpipe"}),
                   .reshard = one_of({true, false}),
                   .accumulate_sharded = one_of({true, false}),
                   .offload = one_of({true, false, false}),
                   .float8 = one_of({true, false, false})};
  l.bf16_parameters = l.bf16 && one_of({true, false});
  l.microbatches = std::max(l.microbatches, l.pp);
  return l;
}

void extrapolated_equals_exact() {
  const auto layout = any_layout();
  const auto work = any_preset(layout.replicate * layout.shard * layout.microbatches);
  const auto fast = planned_decoder(work, hardware()), full = planned_decoder(work, hardware(), /*exact=*/true);
  RC_PRE(full.reject(layout).empty());
  const auto few = fast.cost(layout), all = full.cost(layout);
  const double seconds = few.seconds / all.seconds;
  const double bytes = static_cast<double>(few.peak_bytes) / static_cast<double>(all.peak_bytes);
  RC_ASSERT((std::abs(bytes - 1) < 0.03 && std::abs(seconds - 1) < 0.05) ||
            (RC_LOG() << layout.str() << ", " << work.model.layers << " layers of " << work.model.hidden
                      << " features, " << work.batch << " x " << work.sequence << " tokens: " << bytes
                      << " of the memory, " << seconds << " of the time",
             false));
}

// All blocks and all microbatches run in the exact dry run. RC_PARAMS="max_success=50" draws as many.
TEST(DecoderCost, ExtrapolationEqualsTheFullRun) {
  dtensor::test::check_property("extrapolated time and memory are those of the full run", extrapolated_equals_exact, 4);
}

// Casts and sums of units, which the trace marks, are larger with fewer shards. Other operators are equal, up to the
// update.
TEST(DecoderCost, OperatorsOfUnitsDependOnShards) {
  const auto work = small_model(2);
  const auto bytes_of = [&](const ParallelLayout& l, bool of_unit) {
    const auto trace = run_stage(work, l, {.part = {2}}, {}).trace;
    double bytes = 0;
    for (const auto& event : trace.events) {
      const bool mark = event.kind == StepTrace::Kind::mark;
      if (mark && trace.names[static_cast<std::size_t>(event.name)] == "update") break;
      bytes +=
          event.kind < StepTrace::Kind::collective && event.of_unit == of_unit ? static_cast<double>(event.bytes) : 0;
    }
    return bytes;
  };
  for (const bool bf16 : {true, false}) {
    const ParallelLayout few{.replicate = 2, .shard = 2, .bf16 = bf16}, many{.shard = 4, .bf16 = bf16};
    EXPECT_EQ(bytes_of(few, false), bytes_of(many, false));
    if (!bf16) continue;
    EXPECT_GT(bytes_of(many, true), size_of(work).parameters);
    EXPECT_GT(bytes_of(few, true), 1.5 * bytes_of(many, true));
  }
}

// The products of a step without recomputation are 6 FLOPs for each active weight and token, besides attention.
TEST(DecoderCost, FlopsOfAStepAreThoseOfTheFormula) {
  const auto work = small_model(4);
  const ParallelLayout layout{.shard = 8, .bf16 = true};
  double flops = 0, products = 0;
  for (const auto& event : run_stage(work, layout, {.part = {4}}, {.asynchronous = true}).trace.events) {
    flops += static_cast<double>(event.flops);
    if (event.kind == StepTrace::Kind::product) products += static_cast<double>(event.flops);
  }
  const double tokens = static_cast<double>(work.batch * work.sequence) / 8;
  EXPECT_NEAR(products / (6 * size_of(work).active_weights * tokens), 1, 1e-6);
  // A fused kernel computes the scores once more in backward: 7 products instead of 6.
  const double pairs = size_of(work).causal_flops_per_token - 6 * size_of(work).active_weights;
  EXPECT_NEAR((flops - products) / (pairs * tokens * 7 / 6), 1, 1e-6);
}

// Gathers and reductions of a step with 4 microbatches: what stays gathered is gathered once, what is reduced into
// shards is reduced for each microbatch, and gradients that wait need the memory of all parameters.
TEST(DecoderCost, KeepsBetweenMicrobatchesWhatTheLayoutSays) {
  const auto work = small_model(4);
  const auto report = [&](bool reshard, bool sharded, int microbatches) {
    const ParallelLayout l{.shard = 8, .microbatches = microbatches, .reshard = reshard, .accumulate_sharded = sharded};
    return run_stage(work, l, {.part = {4}, .microbatches = microbatches, .every_backward = true}, {});
  };
  const auto calls = [](const DryRunReport& r, const char* kind) { return r.collectives.at({kind, "shard"}).calls; };
  const auto one = report(false, false, 1), zero1 = report(false, false, 4), zero2 = report(false, true, 4);
  EXPECT_EQ(calls(zero1, "all_gather"), calls(one, "all_gather"));
  EXPECT_EQ(calls(zero2, "all_gather"), calls(one, "all_gather"));
  EXPECT_GT(calls(report(true, true, 4), "all_gather"), 6 * calls(one, "all_gather"));
  EXPECT_EQ(calls(zero1, "reduce_scatter"), calls(one, "reduce_scatter"));
  EXPECT_EQ(calls(zero2, "reduce_scatter"), 4 * calls(one, "reduce_scatter"));
  EXPECT_GT(static_cast<double>(zero1.peak.bytes - zero2.peak.bytes), 0.5 * 4 * 7 / 8 * size_of(work).parameters);
  const auto zero3 = report(true, true, 4);
  EXPECT_LT(zero3.peak.bytes, zero2.peak.bytes);
}

// With offloading, a step copies the shard of each unit to the device for each gather, and its gradient to the host for
// each microbatch. The host updates parameters from gradients and two states.
TEST(DecoderCost, OffloadingMovesShardsAndGradients) {
  constexpr double kFloat = 4;
  const auto work = small_model(4);
  const double all = size_of(work).parameters / 8, block = size_of_block(work).parameters / 8;  // of a rank
  for (const bool reshard : {true, false}) {
    for (const int microbatches : {1, 4}) {
      const ParallelLayout l{.shard = 8, .microbatches = microbatches, .reshard = reshard, .offload = true};
      const auto report = run_stage(work, l, {.part = {4}, .microbatches = microbatches, .every_backward = true}, {});
      std::map<StepTrace::Kind, double> bytes;
      for (const auto& event : report.trace.events) bytes[event.kind] += static_cast<double>(event.bytes);
      // Backward begins with the last block, which stays gathered, and with the head.
      const double to_device = reshard ? microbatches * (all + 3 * block) : all, to_host = microbatches * all;
      EXPECT_NEAR(bytes[StepTrace::Kind::transfer] / (kFloat * (to_device + to_host)), 1, 1e-6) << l.str();
      EXPECT_GT(bytes[StepTrace::Kind::host], 4 * kFloat * all) << l.str();
      for (const auto kind : {MemoryKind::parameter, MemoryKind::gradient, MemoryKind::optimizer_state}) {
        const auto kept = static_cast<double>(report.peak_by_kind[static_cast<std::size_t>(kind)]);
        EXPECT_LT(kept, 0.01 * kFloat * all) << to_string(kind);
      }
    }
  }
}

// The cost of a layout, with offloading and without, on hardware with these rates of the host.
TEST(DecoderCost, OffloadingTakesTheTimeOfTheHost) {
  const auto work = small_model(4);
  auto fast = hardware(), slow = hardware();
  slow.rates["transfer"][0].rate /= 2;
  const ParallelLayout kept{.shard = 8, .bf16 = true};
  auto offloaded = kept;
  offloaded.offload = true;
  const auto on_device = planned_decoder(work, fast).cost(kept), on_host = planned_decoder(work, fast).cost(offloaded);
  const double rank = size_of(work).parameters / 8;
  EXPECT_EQ(on_device.host_bytes, 0);
  EXPECT_NEAR(static_cast<double>(on_host.host_bytes) / (16 * rank), 1, 1e-6);
  EXPECT_LT(static_cast<double>(on_host.peak_bytes), static_cast<double>(on_device.peak_bytes) - 11 * rank);
  EXPECT_GT(on_host.seconds, on_device.seconds + 2 * 4 * rank / 5e10 + 16 * rank / 3e10);
  EXPECT_GT(planned_decoder(work, slow).cost(offloaded).seconds, on_host.seconds + 2 * 4 * rank / 5e10);
  EXPECT_EQ(planned_decoder(work, slow).cost(kept).seconds, on_device.seconds);
  EXPECT_NE(on_host.explanation.find("in host memory"), std::string::npos) << on_host.explanation;
}

// Several stages of a rank fill the pipeline sooner and keep more microbatches; a split backward pass fills its end.
TEST(DecoderCost, SchedulesTradeIdleTimeForMemory) {
  auto hardware_of_test = hardware();
  for (auto& level : hardware_of_test.levels) level.bandwidth = 1e12;
  const auto program = planned_decoder(small_model(8), hardware_of_test);
  const auto cost = [&](const char* schedule) {
    return program.cost({.pp = 4, .shard = 2, .microbatches = 8, .bf16 = true, .schedule = schedule, .reshard = false});
  };
  const auto one_stage = cost("1f1b"), interleaved = cost("interleaved"), zero_bubble = cost("zb-h1"), v = cost("zbv");
  EXPECT_LT(interleaved.seconds, 0.97 * one_stage.seconds);
  EXPECT_GT(interleaved.peak_bytes, one_stage.peak_bytes);
  EXPECT_LT(zero_bubble.seconds, 0.97 * one_stage.seconds);
  EXPECT_LT(v.seconds, 0.97 * one_stage.seconds);
}

// Without a matrix of scores, the memory of a step depends on the number of tokens, not on the length of sequences.
TEST(DecoderCost, LatentAttentionStoresNoScores) {
  auto work = small_model(2);
  work.model.kv_heads = work.model.heads;
  work.model.latent = nn::LatentAttention{.kv_rank = 64, .rope_size = 16, .nope_size = 16, .value_size = 24};
  work.model.ropes[0].size = 16;
  const auto bytes = [&] {
    return static_cast<double>(run_stage(work, {.shard = 8}, {.part = {2}}, {.asynchronous = true}).peak.bytes);
  };
  const double before = bytes();
  work.batch /= 4, work.sequence *= 4;
  EXPECT_NEAR(bytes() / before, 1, 0.01);
}

TEST(DecoderCost, RecomputationTradesTimeForMemory) {
  const auto program = planned_decoder(small_model(8), hardware());
  const auto keep = program.cost({.shard = 8, .bf16 = true});
  const auto recompute = program.cost({.shard = 8, .recompute = Recomputation::full, .bf16 = true});
  EXPECT_LT(recompute.peak_bytes, keep.peak_bytes);
  EXPECT_GT(recompute.seconds, 1.15 * keep.seconds);
  EXPECT_LT(recompute.seconds, 1.45 * keep.seconds);
}

TEST(DecoderCost, ImpossibleLayoutsHaveAReason) {
  const auto program = planned_decoder(small_model(4), hardware());
  EXPECT_NE(program.reject({.tp = 16}).find("heads of keys 8 is not a multiple of tp"), std::string::npos);
  EXPECT_NE(program.reject({.shard = 64}).find("batch 32 is not a multiple"), std::string::npos);
  EXPECT_NE(program.reject({.pp = 4, .microbatches = 2}).find("fewer microbatches than stages"), std::string::npos);
  EXPECT_NE(program.reject({.shard = 8, .ep = 2}).find("no experts"), std::string::npos);
  EXPECT_EQ(program.reject({.shard = 8, .offload = true}), "");
  EXPECT_EQ(program.reject({.pp = 2, .shard = 4, .microbatches = 2, .offload = true}), "offloading of stages (pp)");
  EXPECT_EQ(program.reject({.shard = 8, .microbatches = 2, .accumulate_sharded = false, .offload = true}),
            "offloading of unsharded sums of gradients");
  EXPECT_EQ(program.reject({.shard = 8, .offload = true, .optimizer = "muon"}), "offloading with muon");
  auto experts = small_model(4);
  experts.model.experts.emplace().router = {.experts = 8};
  experts.model.layer.assign(4, {.experts = true});
  EXPECT_EQ(planned_decoder(experts, hardware()).reject({.shard = 8, .offload = true}), "offloading of experts");
}

}  // namespace
}  // namespace plan
