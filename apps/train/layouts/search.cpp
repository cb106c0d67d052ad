#include "train/layouts/search.h"

#include <fmt/format.h>

#include "train/layouts/dry_run.h"
#include "train/layouts/flops.h"
#include "train/layouts/plan_file.h"
#include "train/model/model.h"
#include "train/model/stages.h"
#include "train/output/progress.h"
#include "train/program.h"
#include "train/run.h"

namespace train {

using dtensor::LayoutCost;
using dtensor::ParallelLayout;

Options with_layout(Options options, const ParallelLayout& l) {
  options.mesh = MeshShape{.replicate = l.replicate, .shard = l.shard, .tp = l.tp, .pp = l.pp, .cp = l.cp};
  options.grad_accum = l.pp > 1 ? 1 : l.microbatches;
  if (l.pp > 1) options.microbatches = static_cast<int>(l.microbatches);
  if (options.experts) options.experts->ep = l.ep;
  options.schedule = l.schedule, options.chunks = static_cast<int>(l.chunks);
  options.checkpoint_activations = l.recompute != dtensor::Recomputation::none;
  options.bf16 = l.bf16;
  options.sequence_parallel = options.loss_parallel = l.tp > 1;
  return options;
}

namespace {

// The largest message of a step: activations or their gradients.
std::int64_t message_bytes(const dtensor::StepTrace& trace) {
  std::int64_t bytes = 0;
  for (const auto& event : trace.events) {
    const bool message = event.kind == dtensor::StepTrace::Kind::collective && event.group < 0;
    if (message) bytes = std::max(bytes, event.bytes);
  }
  return bytes;
}

}  // namespace

LayoutCost cost_of(const dtensor::DryRunReport& report, const Options& options,
                   const dtensor::HardwareModel& hardware) {
  std::vector<dtensor::StepEstimate> times{estimate_step(report.trace, hardware)};
  LayoutCost cost{.seconds = times[0].seconds, .peak_bytes = report.peak_bytes(), .largest = report.largest()};
  double bubble = 0;
  if (const auto pp = options.mesh ? options.mesh->pp : 1; pp > 1) {
    for (const auto& peer : report.peers) times.push_back(estimate_step(peer.trace, hardware));
    const double message = hardware.seconds("send", {0, options.mesh->stage_size()}, message_bytes(report.trace));
    const auto step = estimate_pipeline(schedule_of(options, static_cast<int>(pp)), times, message);
    cost.seconds = step.seconds, bubble = step.bubble;
  }
  cost.explanation = times[0].shares() + (bubble > 0 ? fmt::format("; bubble {:.0f}%", 100 * bubble) : "");
  return cost;
}

LayoutCost estimate_layout(const Options& options, const Corpus& corpus, const dtensor::HardwareModel& hardware) {
  return cost_of(trace_step(options, corpus, hardware.asynchronous), options, hardware);
}

namespace {

// Why the model cannot be split so; empty: it can.
std::string reject_model(const Options& o, const ParallelLayout& l) {
  const GptConfig config = gpt_config(o);
  const auto heads = config.kv_heads > 0 ? config.kv_heads : config.heads;
  if (heads % l.tp != 0) return fmt::format("the {} heads of keys are not a multiple of tp", heads);
  if (!o.experts && l.ep > 1) return "the model has no experts for ep";
  if (o.experts && (o.experts->experts % l.ep != 0 || l.ranks() / l.pp / o.experts->etp % l.ep != 0)) {
    return fmt::format("the {} experts, or the ranks of a stage beside etp, are not a multiple of ep",
                       o.experts->experts);
  }
  return "";
}

std::string reject(const Options& o, const ParallelLayout& l) {
  const GptConfig config = gpt_config(o);
  if (auto reason = reject_model(o, l); !reason.empty()) return reason;
  if (o.seq % (l.cp * l.tp) != 0) return fmt::format("the sequence {} is not a multiple of cp x tp", o.seq);
  if (o.batch % (l.replicate * l.shard * l.microbatches) != 0) {
    return fmt::format("the batch {} is not a multiple of replicate x shard x microbatches", o.batch);
  }
  const auto stages = l.pp * (l.schedule == "interleaved" ? 2 : 1);
  if (l.pp > 1 && o.parallel != "fsdp") return "stages (pp) need --parallel fsdp";
  if (l.pp > 1 && stages > config.layers + 2) return "more stages than layers";
  if (l.pp > 1 && l.microbatches < l.pp) return "fewer microbatches than stages";
  return "";
}

// Parameters of the model without its experts, and those of the experts, which are on all ranks of a stage.
std::pair<double, double> parameter_counts(GptConfig config) {
  config.tensor = config.tensor.device(at::kMeta);
  double dense = 0, sparse = 0;
  for (const at::Tensor& p : Gpt(config).parameters())
    (p.dim() == 3 ? sparse : dense) += static_cast<double>(p.numel());
  return {dense, sparse};
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
  const auto [dense, sparse] = parameter_counts(config);
  const double share = dense / static_cast<double>(l.shard * l.cp * l.tp * l.pp) + sparse / ranks;
  const double tensors = o.optimizer == "adamw" ? 4 : 2;  // at least: parameter, gradient, two states
  const double bytes = tensors * share * static_cast<double>(at::elementSize(scalar_type(o.dtype)));
  return {.seconds = flops / ranks / rate,
          .peak_bytes = static_cast<std::int64_t>(bytes),
          .largest = "parameters, gradients and states alone, " + bytes_text(bytes)};
}

dtensor::SearchLimits limits_of(const Options& o) {
  return {.memory_bytes = static_cast<std::int64_t>(o.memory_limit * 1e9), .most_runs = 100};
}

}  // namespace

dtensor::LayoutPlan search(const Options& o, const Corpus& corpus, const dtensor::HardwareModel& hardware) {
  dtensor::LayoutSpace space{.ranks = o.ranks.value_or(o.mesh ? static_cast<int>(o.mesh->size()) : 1)};
  space.bf16 = {o.bf16};
  space.max_cp = 2, space.max_pp = 8;
  if (o.experts) space.max_ep = o.experts->experts;
  space.microbatches = {1, 2, 4, 8};
  space.schedules = {"1f1b", "interleaved"};
  const dtensor::PlannedProgram program{
      .reject = [&](const ParallelLayout& l) { return reject(o, l); },
      .bound = [&](const ParallelLayout& l) { return bound(o, l, hardware); },
      .cost = [&](const ParallelLayout& l) { return estimate_layout(with_layout(o, l), corpus, hardware); }};
  auto layouts = enumerate_layouts(space);
  const auto ep = o.experts ? o.experts->ep : 0;
  std::erase_if(layouts, [&](const ParallelLayout& l) { return ep > 0 && l.ep != ep; });
  return search_layouts(layouts, program, limits_of(o));
}

int report_search(const Options& o, const Corpus& corpus) {
  const auto plan = search(o, corpus, dtensor::HardwareModel::read(o.plan_search));
  fmt::print("{}", plan.table(limits_of(o)));
  if (plan.fitting.empty()) return 1;
  if (o.plan_out.empty()) return 0;
  const auto& best = plan.fitting.front();
  write_plan(o.plan_out, {best.layout}, best.cost);
  return 0;
}

Options with_plan(Options options) {
  if (options.plan.empty()) return options;
  const auto layout = read_plan(options.plan).layout;
  if (layout.recompute == dtensor::Recomputation::selective) {
    throw UsageError("--plan: `train` recomputes blocks or nothing; `llm train` supports \"selective\"");
  }
  if (layout.bf16_parameters) {
    throw UsageError("--plan: `train` has parameters of --dtype; `llm train` supports \"parameters\": \"bfloat16\"");
  }
  if (layout.offload) {
    throw UsageError("--plan: `train` keeps parameters on the device; `llm train` supports \"offload\"");
  }
  if (const auto reason = reject_model(options, layout); !reason.empty()) {
    throw UsageError(fmt::format("--plan: the layout {} does not fit the model: {}", layout.str(), reason));
  }
  if (!layout.reshard) options.reshard = "false";
  if (!layout.accumulate_sharded) options.accumulate_sharded = false;
  if (layout.float8) options.float8 = true;
  if (layout.optimizer != "adamw") options.optimizer = layout.optimizer;
  return with_layout(std::move(options), layout);
}

}  // namespace train
