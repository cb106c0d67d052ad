// Random runs of examples/train, and what a dry run of one must predict.
#pragma once

#include <rapidcheck.h>

#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "dry_run/compare.h"
#include "dtensor/pipeline_schedule.h"

namespace dry {

using Options = train::Options;

inline const train::Corpus& corpus() {
  static const auto text = train::Corpus::read({}, 64);
  return text;
}

// Bytes that a kernel of LibTorch allocates and frees inside, at these sizes. A dry run does not see them.
inline constexpr double kKernelTemporaries = 1 << 17;

inline bool coin() { return *rc::gen::arbitrary<bool>(); }

inline std::vector<train::MeshShape> meshes() {
  return {{.shard = 1},     {.shard = 2}, {.shard = 4},          {.tp = 2},
          {.replicate = 2}, {.cp = 2},    {.shard = 2, .tp = 2}, {.replicate = 2, .shard = 2},
          {.pp = 2},        {.pp = 4},    {.shard = 2, .pp = 2}, {.tp = 2, .pp = 2}};
}

inline void draw_pipeline(Options& options) {
  const auto& names = dtensor::pipeline::schedule_names();
  options.schedule = *rc::gen::elementOf(names);
  options.microbatches = *rc::gen::elementOf(std::vector<int>{4, 8});
  options.layers = 7;  // the most expensive schedule has two stages on each of four ranks
  options.batch = 32;
  options.grad_accum = 1;
}

// On one of the meshes.
inline Options any_options(const std::vector<train::MeshShape>& meshes) {
  Options options;
  options.mesh = *rc::gen::elementOf(meshes);
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
  options.accumulate_sharded = options.grad_accum == 1 || coin();
  return options;
}

inline std::string text(const Options& o) {
  return c10::str("mesh ", o.mesh->str(), " ", o.schedule, " of ", o.microbatches, " batch ", o.batch, " seq ", o.seq,
                  " hidden ", o.hidden, " layers ", o.layers, " ", to_string(o.dtype), " ", o.parallel,
                  o.bf16 ? " bf16" : "", " reshard ", o.reshard, o.loss_parallel ? " loss-parallel" : "",
                  o.sequence_parallel ? " sequence-parallel" : "", o.checkpoint_activations ? " checkpoint" : "",
                  o.rope ? " rope" : "", " kv ", o.kv_heads, " accum ", o.grad_accum,
                  o.accumulate_sharded ? "" : " unsharded", " ", o.optimizer, " dropout ", o.dropout, " predict ",
                  o.predict_tokens, o.experts ? " experts" : "");
}

using Counted = std::map<std::pair<std::string, std::string>, std::pair<std::int64_t, std::int64_t>>;

inline Counted counted(const dtensor::DryRunReport& report) {
  Counted all;
  for (const auto& [key, count] : report.collectives) all[key] = {count.calls, count.bytes};
  return all;
}

// When a pipeline's message arrives depends on the other ranks: the peaks of two runs differ by up to two messages.
inline double bytes_in_flight(const Options& o) {
  if (o.mesh->pp == 1) return 0;
  const auto elements = o.batch / o.microbatches * o.seq * o.hidden;
  return 2.0 * static_cast<double>(elements * (o.dtype == train::Dtype::float64 ? 8 : 4));
}

// What is wrong with the prediction; empty: nothing. `staging`: bytes that the communication backend may copy into
// buffers of its own.
inline std::string difference(const Options& options, const Reports& reports, double staging = 0) {
  const auto& [predicted, measured] = reports;
  if (counted(predicted) != counted(measured)) return "collectives";
  const auto real = static_cast<double>(measured.peak.bytes), dry = static_cast<double>(predicted.peak.bytes);
  const double late = bytes_in_flight(options);
  // In bfloat16 kernels compute on copies.
  if (dry < (options.bf16 ? 0.9 : 0.99) * real - kKernelTemporaries - late - staging) return "too little memory";
  if (dry > 1.03 * real + late) return "too much memory";
  if (dry != real) return "";
  for (std::size_t kind = 0; kind < std::tuple_size_v<dtensor::MemoryByKind>;
       ++kind) {  // two moments may have the same peak
    const auto apart = predicted.peak_by_kind[kind] - measured.peak_by_kind[kind];
    if (std::abs(static_cast<double>(apart)) > 0.05 * real) return "kinds of memory";
  }
  return "";
}

}  // namespace dry
