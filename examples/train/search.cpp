#include "search.h"

#include <fmt/format.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "dry_run.h"
#include "flops.h"
#include "model.h"
#include "output.h"
#include "program.h"
#include "run.h"

namespace train {

using dtensor::LayoutCost;
using dtensor::ParallelLayout;

Options with_layout(Options options, const ParallelLayout& l) {
  options.mesh = MeshShape{.replicate = l.replicate, .shard = l.shard, .tp = l.tp, .pp = l.pp, .cp = l.cp};
  (l.pp > 1 ? options.microbatches = static_cast<int>(l.microbatches) : options.grad_accum = l.microbatches);
  options.schedule = l.schedule;
  options.checkpoint_activations = l.recompute != dtensor::Recomputation::none;
  options.bf16 = l.bf16;
  options.sequence_parallel = options.loss_parallel = l.tp > 1;
  return options;
}

LayoutCost estimate_layout(const Options& options, const Corpus& corpus, const dtensor::HardwareModel& hardware) {
  const auto report = trace_step(options, corpus, hardware.asynchronous);
  const auto time = estimate_step(report.trace, hardware);
  LayoutCost cost{.seconds = time.seconds, .peak_bytes = std::max(report.peak.bytes, report.peak_before.bytes)};
  const auto largest = std::max_element(report.peak_by_kind.begin(), report.peak_by_kind.end());
  const auto kind = static_cast<dtensor::MemoryKind>(largest - report.peak_by_kind.begin());
  cost.largest = fmt::format("{} {:.1f} MB", dtensor::to_string(kind), 1e-6 * static_cast<double>(*largest));
  cost.explanation = "operators";
  for (const auto& [name, seconds] : time.compute_by_kind) {
    cost.explanation += fmt::format(" {} {:.0f}%", name, 100 * seconds / time.seconds);
  }
  cost.explanation += "; waits";
  for (const auto& [axis, seconds] : time.exposed_by_axis) {
    cost.explanation += fmt::format(" {} {:.0f}%", axis, 100 * seconds / time.seconds);
  }
  return cost;
}

namespace {

std::string reject(const Options& o, const ParallelLayout& l) {
  const GptConfig config = gpt_config(o);
  const auto heads = config.kv_heads > 0 ? config.kv_heads : config.heads;
  if (heads % l.tp != 0) return fmt::format("the {} heads of keys are not a multiple of tp", heads);
  if (o.seq % (l.cp * l.tp) != 0) return fmt::format("the sequence {} is not a multiple of cp x tp", o.seq);
  if (o.batch % (l.replicate * l.shard * l.microbatches) != 0) {
    return fmt::format("the batch {} is not a multiple of replicate x shard x microbatches", o.batch);
  }
  return "";
}

// A step takes at least as long as its FLOPs at the highest rate, and needs the parameters, gradients and states.
LayoutCost bound(const Options& o, const ParallelLayout& l, const dtensor::HardwareModel& hardware) {
  double rate = 0;
  for (const auto& [name, curve] : hardware.rates) {
    for (const auto& point : curve) rate = name.starts_with("product") ? std::max(rate, point.rate) : rate;
  }
  const GptConfig config = gpt_config(o);
  const auto tokens = static_cast<double>(o.batch * o.seq), ranks = static_cast<double>(l.ranks());
  const double flops = flops_per_token(config, o.seq, AttentionFlops::causal) * tokens *
                       (l.recompute == dtensor::Recomputation::full ? 4.0 / 3 : 1);
  const auto share = static_cast<double>(parameter_count(config)) / static_cast<double>(l.shard * l.cp * l.tp * l.pp);
  return {.seconds = flops / ranks / rate,
          .peak_bytes = static_cast<std::int64_t>(o.optimizer == "adamw" ? 16 * share : 8 * share),
          .largest = "parameters, gradients and states alone"};
}

dtensor::SearchLimits limits_of(const Options& o) {
  return {.memory_bytes = static_cast<std::int64_t>(o.memory_limit * 1e9)};
}

}  // namespace

dtensor::LayoutPlan search(const Options& o, const Corpus& corpus, const dtensor::HardwareModel& hardware) {
  dtensor::LayoutSpace space{.ranks = o.ranks.value_or(o.mesh ? static_cast<int>(o.mesh->size()) : 1)};
  space.bf16 = {o.bf16};
  space.max_cp = 2;
  space.microbatches = {1, 2, 4};
  const dtensor::PlannedProgram program{
      .reject = [&](const ParallelLayout& l) { return reject(o, l); },
      .bound = [&](const ParallelLayout& l) { return bound(o, l, hardware); },
      .cost = [&](const ParallelLayout& l) { return estimate_layout(with_layout(o, l), corpus, hardware); }};
  return search_layouts(enumerate_layouts(space), program, limits_of(o));
}

int report_search(const Options& o, const Corpus& corpus) {
  const auto plan = search(o, corpus, dtensor::HardwareModel::read(o.plan_search));
  fmt::print("{}", plan.table(limits_of(o)));
  if (plan.fitting.empty()) return 1;
  if (o.plan_out.empty()) return 0;
  const auto& [l, cost, problem] = plan.fitting.front();
  const nlohmann::ordered_json json = {
      {"mesh", {{"pp", l.pp}, {"replicate", l.replicate}, {"shard", l.shard}, {"cp", l.cp}, {"tp", l.tp}}},
      {"microbatches", l.microbatches},
      {"schedule", l.schedule},
      {"recompute", to_string(l.recompute)},
      {"bf16", l.bf16},
      {"seconds", cost.seconds},
      {"peak_bytes", cost.peak_bytes},
      {"explanation", cost.explanation}};
  write_file(o.plan_out, json.dump(1) + "\n");
  return 0;
}

Options read_plan(Options options) {
  if (options.plan.empty()) return options;
  std::ifstream file(options.plan);
  if (!file) throw UsageError("--plan: cannot read " + options.plan + "; --plan-search with --plan-out writes one");
  try {
    const auto json = nlohmann::json::parse(file);
    const auto& mesh = json.at("mesh");
    ParallelLayout l{.pp = mesh.at("pp"),
                     .replicate = mesh.at("replicate"),
                     .shard = mesh.at("shard"),
                     .cp = mesh.at("cp"),
                     .tp = mesh.at("tp")};
    l.microbatches = json.at("microbatches");
    l.schedule = json.at("schedule");
    if (json.at("recompute") == "full") l.recompute = dtensor::Recomputation::full;
    l.bf16 = json.at("bf16");
    return with_layout(std::move(options), l);
  } catch (const nlohmann::json::exception& error) {
    throw UsageError("--plan: " + options.plan + " is not a plan: " + error.what());
  }
}

}  // namespace train
