// Runs of the example `train` in a BitIdentical scope, on many layouts.
#pragma once

#include <cstring>
#include <filesystem>

#include "dtensor/comm.h"
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
    // The loss of a part of packed documents is divided by its own number of targets.
    const bool inexact = base.documents;
    add(
        "two microbatches", {.shard = 2}, [](auto& o) { o.grad_accum = 2; }, inexact);
    add(
        "four microbatches", {.tp = 2}, [](auto& o) { o.grad_accum = 4; }, /*refused=*/true);
    add(
        "two microbatches, unsharded", {.shard = 2}, [](auto& o) { o.grad_accum = 2, o.accumulate_sharded = false; },
        inexact);
    // The norm over stages is refused.
    for (const char* schedule : {"gpipe", "1f1b", "zb-h1"}) {
      const auto change = [=](auto& o) { o.schedule = schedule, o.microbatches = 2; };
      add(std::string("pp ") + schedule, {.pp = 2}, change, /*refused=*/true);
    }
  }
  if (ranks == 4) {
    add("hsdp", {.replicate = 2, .shard = 2});
    add("fsdp and tp", {.shard = 2, .tp = 2});
    add("fsdp and cp", {.shard = 2, .cp = 2});
  }
  return all;
}

// Losses and gradient norms of all steps.
inline std::vector<double> curve_of(const std::vector<train::StepRecord>& records) {
  std::vector<double> curve;
  for (const auto& r : records) curve.push_back(r.loss), curve.push_back(r.grad_norm);
  return curve;
}

// Throws unless a run has the curve of one device to the last bit, or is refused as expected.
inline void check_layout(const Communicator& world, const TrainLayout& layout, const std::vector<double>& expected) {
  std::string refusal;
  std::vector<double> curve;
  try {
    curve = curve_of(train::train_on_mesh(world, layout.options, corpus_of_layouts(), {}));
  } catch (const c10::Error& error) {
    refusal = error.what_without_backtrace();
    if (refusal.find("has no bit-identical form") == std::string::npos) throw;
  }
  TORCH_CHECK(refusal.empty() != layout.refused, layout.name, ": ", refusal.empty() ? "was not refused" : refusal);
  if (layout.refused) return;
  TORCH_CHECK(curve.size() == expected.size(), layout.name, ": ", curve.size(), " numbers, expected ", expected.size());
  for (std::size_t i = 0; i < curve.size(); ++i) {
    TORCH_CHECK(curve[i] == expected[i], layout.name, ": ", i % 2 == 0 ? "loss" : "gradient norm", " of step ", i / 2,
                " differs by ", curve[i] - expected[i]);
  }
}

}  // namespace dtensor::test
