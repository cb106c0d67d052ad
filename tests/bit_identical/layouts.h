// Runs of the example `train` in a BitIdentical scope, on many layouts.
#pragma once

#include <filesystem>

#include "dtensor/comm.h"
#include "dtensor/pipeline_schedule.h"
#include "support/data.h"
#include "train/run.h"

namespace dtensor::test {

struct TrainLayout {
  std::string name;
  train::Options options;
  bool refused = false;  // by name
};

inline train::Options same_bits_options() {
  train::Options o;
  o.bit_identical = true;
  o.batch = 4, o.seq = 64, o.steps = 2, o.warmup = 2, o.lr = 1e-2;
  o.data = {data_path("oracles/transformer.json")};
  return o;
}

inline const train::Corpus& corpus_of_layouts() {
  static const train::Corpus corpus = train::Corpus::read(same_bits_options().data, same_bits_options().seq);
  return corpus;
}

// Layouts of a number of ranks, on top of given options.
inline std::vector<TrainLayout> layouts_of(const train::Options& base, int ranks) {
  std::vector<TrainLayout> all;
  const auto add = [&](std::string name, train::MeshShape shape,
                       const std::function<void(train::Options&)>& change = {}, bool refused = false) {
    auto options = base;
    options.mesh = shape;
    if (change) change(options);
    all.push_back({std::move(name), std::move(options), refused});
  };
  add("tp", {.tp = ranks});
  add("fsdp", {.shard = ranks});
  add("sequence parallelism", {.tp = ranks}, [](auto& o) { o.sequence_parallel = true; });
  for (const char* strategy : {"ring", "gather", "ulysses"}) {
    add(std::string("cp ") + strategy, {.cp = ranks}, [=](auto& o) { o.cp_strategy = strategy; });
  }
  add("cp zigzag", {.cp = ranks}, [](auto& o) { o.zigzag_sequence = true; });
  add("recomputation", {.shard = ranks}, [](auto& o) { o.checkpoint_activations = true; });
  if (ranks == 2) {
    const int parts = base.batch == 6 ? 3 : 2;
    const auto in_parts = [=](auto& o) { o.grad_accum = parts; };
    add("microbatches", {.shard = 2}, in_parts);
    add("microbatches, tp", {.tp = 2}, in_parts);
    add(
        "four microbatches", {.tp = 2}, [](auto& o) { o.grad_accum = 4; }, /*refused=*/true);
    add("microbatches, unsharded", {.shard = 2}, [=](auto& o) { o.grad_accum = parts, o.accumulate_sharded = false; });
    for (const std::string& schedule : pipeline::schedule_names()) {
      add("pp " + schedule, {.pp = 2}, [=](auto& o) { o.schedule = schedule, o.microbatches = parts; });
    }
  }
  if (ranks == 4) {
    add("hsdp", {.replicate = 2, .shard = 2});
    add("fsdp and tp", {.shard = 2, .tp = 2});
    add("fsdp and cp", {.shard = 2, .cp = 2});
    add("pp and tp", {.tp = 2, .pp = 2}, [](auto& o) { o.microbatches = 2; });
  }
  return all;
}

// Layouts of a model with experts (Options::experts), on top of given options.
inline std::vector<TrainLayout> expert_layouts_of(const train::Options& base, int ranks) {
  std::vector<TrainLayout> all;
  const auto add = [&](std::string name, train::MeshShape shape, std::int64_t ep, std::int64_t etp = 1,
                       const std::function<void(train::Options&)>& change = {}, bool refused = false) {
    auto options = base;
    options.mesh = shape, options.experts->ep = ep, options.experts->etp = etp;
    if (change) change(options);
    all.push_back({std::move(name), std::move(options), refused});
  };
  add("fsdp, ep", {.shard = ranks}, ranks);
  add("fsdp, experts on all ranks", {.shard = ranks}, 1);
  add("tp, ep", {.tp = ranks}, ranks);
  add("tp, etp", {.tp = ranks}, 1, ranks);
  add("sequence parallelism, ep", {.tp = ranks}, ranks, 1, [](auto& o) { o.sequence_parallel = true; });
  add("sequence parallelism, etp", {.tp = ranks}, 1, ranks, [](auto& o) { o.sequence_parallel = true; });
  add("cp, ep", {.cp = ranks}, ranks);
  add("recomputation, ep", {.shard = ranks}, ranks, 1, [](auto& o) { o.checkpoint_activations = true; });
  if (ranks == 2) {
    add("placements, ep", {.shard = 2}, 2, 1, [](auto& o) { o.parallel = "plain"; });
    // The auxiliary loss is no sum over tokens.
    const int parts = base.batch == 6 ? 3 : 2;
    const bool refused = base.experts->balance == "aux";
    const auto in_parts = [=](auto& o) { o.grad_accum = parts; };
    add("microbatches, ep", {.shard = 2}, 2, 1, in_parts, refused);
    add("microbatches, tp, etp", {.tp = 2}, 1, 2, in_parts, refused);
    add(
        "microbatches, recomputation", {.shard = 2}, 1, 1,
        [=](auto& o) { o.grad_accum = parts, o.checkpoint_activations = true; }, refused);
    for (const std::string& schedule : pipeline::schedule_names()) {
      add(
          "pp " + schedule, {.pp = 2}, 1, 1, [=](auto& o) { o.schedule = schedule, o.microbatches = parts; }, refused);
    }
  }
  if (ranks == 4) {
    add("fsdp and tp, ep 2 x etp 2", {.shard = 2, .tp = 2}, 2, 2);
    add("fsdp and cp, ep 2", {.shard = 2, .cp = 2}, 2);
    add("hsdp, ep 2", {.replicate = 2, .shard = 2}, 2);
  }
  return all;
}

// Throws unless a run has the losses, gradient norms and final hash of one device, or is refused as expected.
inline void check_layout(const Communicator& world, const TrainLayout& layout,
                         const std::vector<train::StepRecord>& expected) {
  std::string refusal;
  std::vector<train::StepRecord> records;
  try {
    records = train::train_on_mesh(world, layout.options, corpus_of_layouts(), {});
  } catch (const c10::Error& error) {
    refusal = error.what_without_backtrace();
    if (refusal.find("has no bit-identical form") == std::string::npos) throw;
  }
  TORCH_CHECK(refusal.empty() != layout.refused, layout.name, ": ", refusal.empty() ? "was not refused" : refusal);
  if (layout.refused) return;
  TORCH_CHECK(records.size() == expected.size(), layout.name, ": ", records.size(), " steps");
  for (std::size_t i = 0; i < records.size(); ++i) {
    const auto &a = records[i], &b = expected[i];
    TORCH_CHECK(a.loss == b.loss, layout.name, ": the loss of step ", i, " differs by ", a.loss - b.loss);
    TORCH_CHECK(a.grad_norm == b.grad_norm, layout.name, ": the norm of step ", i, " differs by ",
                a.grad_norm - b.grad_norm);
  }
  const std::string &hash = records.back().content_hash, &other = expected.back().content_hash;
  TORCH_CHECK(hash == other && hash.size() == 64, layout.name, ": hash ", hash, ", expected ", other);
}

}  // namespace dtensor::test
