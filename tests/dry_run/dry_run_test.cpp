// A dry run predicts what the run on thread ranks does: number and bytes of collectives exactly, and the peak of
// memory.
#include <gtest/gtest.h>

#include <cmath>

#include "dry_run/compare.h"
#include "dtensor/pipeline_schedule.h"
#include "support/draws.h"

namespace dry {
namespace {

using Options = train::Options;

const train::Corpus& corpus() {
  static const auto text = train::Corpus::read({}, 64);
  return text;
}

// Bytes that a kernel of LibTorch allocates and frees inside, at these sizes. A dry run does not see them.
constexpr double kKernelTemporaries = 1 << 17;

bool coin() { return *rc::gen::arbitrary<bool>(); }

train::MeshShape any_mesh() {
  return *rc::gen::elementOf(std::vector<train::MeshShape>{{.shard = 1},
                                                           {.shard = 2},
                                                           {.shard = 4},
                                                           {.tp = 2},
                                                           {.replicate = 2},
                                                           {.cp = 2},
                                                           {.shard = 2, .tp = 2},
                                                           {.replicate = 2, .shard = 2},
                                                           {.pp = 2},
                                                           {.pp = 4},
                                                           {.shard = 2, .pp = 2},
                                                           {.tp = 2, .pp = 2}});
}

void draw_pipeline(Options& options) {
  const auto& names = dtensor::pipeline::schedule_names();
  options.schedule = *rc::gen::elementOf(names);
  options.microbatches = *rc::gen::elementOf(std::vector<int>{4, 8});
  options.layers = 7;  // the most expensive schedule has two stages on each of four ranks
  options.batch = 32;
  options.grad_accum = 1;
}

Options any_options() {
  Options options;
  options.mesh = any_mesh();
  options.steps = 2;
  options.batch = *rc::gen::elementOf(std::vector<std::int64_t>{4, 8});
  options.seq = *rc::gen::elementOf(std::vector<std::int64_t>{32, 64});
  options.hidden = *rc::gen::elementOf(std::vector<std::int64_t>{64, 128});
  options.layers = *rc::gen::inRange<std::int64_t>(1, 4);
  options.dtype = coin() ? train::Dtype::float32 : train::Dtype::float64;
  options.parallel = coin() ? "fsdp" : "plain";
  options.bf16 = options.parallel == "fsdp" && options.dtype == train::Dtype::float32 && coin();
  if (options.parallel == "fsdp" && coin()) options.reshard = "false";
  options.loss_parallel = coin(), options.sequence_parallel = coin(), options.checkpoint_activations = coin();
  options.rope = coin();
  options.kv_heads = coin() ? 2 : 0;
  options.grad_accum = coin() ? 1 : 2;
  options.optimizer = *rc::gen::elementOf(std::vector<std::string>{"adamw", "sgd", "muon"});
  options.dropout = coin() ? 0 : 0.1;
  options.predict_tokens = coin() ? 1 : 2;
  if (coin()) {
    options.experts.emplace().balance = "forced";  // a dry run cannot know the choice of a router
    options.batch = 8;  // each piece has rows for all ranks, since peers send what this one sends
  }
  if (options.mesh->pp > 1) draw_pipeline(options);
  return options;
}

std::string text(const Options& o) {
  return c10::str("mesh ", o.mesh->str(), " ", o.schedule, " of ", o.microbatches, " batch ", o.batch, " seq ", o.seq,
                  " hidden ", o.hidden, " layers ", o.layers, " ", to_string(o.dtype), " ", o.parallel,
                  o.bf16 ? " bf16" : "", " reshard ", o.reshard, o.loss_parallel ? " loss-parallel" : "",
                  o.sequence_parallel ? " sequence-parallel" : "", o.checkpoint_activations ? " checkpoint" : "",
                  o.rope ? " rope" : "", " kv ", o.kv_heads, " accum ", o.grad_accum, " ", o.optimizer, " dropout ",
                  o.dropout, " predict ", o.predict_tokens, o.experts ? " experts" : "");
}

using Counted = std::map<std::pair<std::string, std::string>, std::pair<std::int64_t, std::int64_t>>;

Counted counted(const dtensor::DryRunReport& report) {
  Counted all;
  for (const auto& [key, count] : report.collectives) all[key] = {count.calls, count.bytes};
  return all;
}

// A block that is recomputed is used before and after the unit of its experts, so both are gathered together.
TEST(DryRun, PredictsGatheredUnitsOfRecomputedExperts) {
  Options options;
  options.mesh = train::MeshShape{.shard = 2, .tp = 2};
  options.steps = options.layers = 2, options.batch = 8, options.seq = 64, options.device = "cpu";
  options.bf16 = options.checkpoint_activations = options.sequence_parallel = true;
  options.experts.emplace().ep = 2;
  std::vector<train::RankMemory> measured;
  dtensor::run_local(4, [&](const dtensor::Communicator& world) {
    train::MemoryUse memory;
    train::train_on_mesh(world, options, corpus(), {}, &memory);
    if (world.rank() == 0) measured = memory.ranks();
  });
  EXPECT_EQ(train::predict_memory(options, corpus(), 4), measured);
}

void predicts_collectives_and_peak() {
  const auto options = any_options();
  const auto rank = *rc::gen::inRange(0, static_cast<int>(options.mesh->size()));
  const auto [predicted, measured] = compare(options, corpus(), rank);
  RC_LOG() << "rank " << rank << " " << text(options) << "\npredicted\n"
           << predicted.table() << "measured\n"
           << measured.table();
  RC_ASSERT(counted(predicted) == counted(measured));
  const auto real = static_cast<double>(measured.peak.bytes), dry = static_cast<double>(predicted.peak.bytes);
  RC_ASSERT(dry >= (options.bf16 ? 0.9 : 0.99) * real - kKernelTemporaries);  // bfloat16: kernels compute on copies
  RC_ASSERT(dry <= 1.03 * real);
  if (dry != real) return;
  for (std::size_t kind = 0; kind < dtensor::kMemoryKinds; ++kind) {  // two moments may have the same peak
    const auto apart = predicted.peak_by_kind[kind] - measured.peak_by_kind[kind];
    RC_ASSERT(std::abs(static_cast<double>(apart)) <= 0.05 * real);
  }
}

TEST(DryRun, PredictsCollectivesAndPeakOfTrain) {
  dtensor::test::check_property("DryRun.PredictsCollectivesAndPeakOfTrain", predicts_collectives_and_peak, 12);
}

}  // namespace
}  // namespace dry
