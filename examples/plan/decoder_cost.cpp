#include "decoder_cost.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <set>

#include "block_cost.h"
#include "dtensor/fully_shard.h"
#include "dtensor/hooks.h"
#include "dtensor/moe.h"
#include "dtensor/optim.h"
#include "extrapolate.h"
#include "stage_model.h"

namespace plan {

using namespace dtensor;

namespace {

std::int64_t rank_rows(const Workload& work, const ParallelLayout& layout) {
  return work.batch / (layout.replicate * layout.shard);
}

// One rank of a stage during a step: the microbatches in flight, and the optimizer.
class StageStep {
 public:
  StageStep(const Workload& work, const ParallelLayout& layout, const Communicator& world, StageModel::Part part)
      : work_(work),
        layout_(layout),
        part_(part),
        mesh_(init_device_mesh(world, at::kCPU, {layout.replicate, layout.shard, layout.cp, layout.tp},
                               {"replicate", "shard", "cp", "tp"})),
        model_(work.model, part) {
    model_.distribute(mesh_, layout);
    model_.reset();
    AdamW::Group group{.parameters = {}, .options = {}, .names = {}};
    for (const auto& [name, tensor] : model_.named_parameters()) {
      group.names.push_back(name);
      group.parameters.push_back(*tensor);
    }
    parameters_ = group.parameters;
    optimizer_ = std::make_unique<AdamW>(std::vector{std::move(group)});
  }

  void run(const std::vector<pipeline::Action>& actions) {
    std::int64_t left = std::count_if(actions.begin(), actions.end(), is_backward);
    for (const auto& action : actions) {
      StepRecorder::mark(to_string(action));
      if (!is_backward(action)) {
        forward(action.microbatch);
        continue;
      }
      std::optional<NoGradientSync> later;
      if (--left > 0) later.emplace();
      backward(action.microbatch);
    }
    StepRecorder::mark("update");
    clip_grad_norm_(parameters_, 1.0);
    optimizer_->step();
    optimizer_->zero_grad();
  }

 private:
  static bool is_backward(const pipeline::Action& action) { return action.kind == pipeline::Action::Kind::backward; }

  std::int64_t rows() const { return rank_rows(work_, layout_) / layout_.microbatches; }

  at::Tensor ids() const {
    const auto local = at::zeros({rows(), work_.sequence / layout_.cp}, at::kLong);
    return DTensor::from_local(local, mesh_, {Shard(0), Shard(0), ZigzagShard(1), Replicate()},
                               {rows() * layout_.replicate * layout_.shard, work_.sequence});
  }

  // Activations or their gradients between two stages.
  at::Tensor activations() const {
    const auto local = at::empty({rows(), work_.sequence / layout_.cp / layout_.tp, work_.model.hidden},
                                 layout_.bf16 ? at::kBFloat16 : at::kFloat);
    return DTensor::from_local(local, mesh_, {Shard(0), Shard(0), ZigzagShard(1), Shard(1)},
                               {rows() * layout_.replicate * layout_.shard, work_.sequence, work_.model.hidden});
  }

  void forward(int microbatch) {
    const at::Tensor input = part_.first ? ids() : activations().detach().requires_grad_();
    outputs_[microbatch] = model_(input, part_.last ? ids() : at::Tensor(), layout_.recompute);
  }

  void backward(int microbatch) {
    const at::Tensor output = std::move(outputs_.extract(microbatch).mapped());
    part_.last ? output.backward() : output.backward(activations());
  }

  const Workload& work_;
  const ParallelLayout& layout_;
  StageModel::Part part_;
  DeviceMesh mesh_;
  StageModel model_;
  std::vector<at::Tensor> parameters_;
  std::unique_ptr<AdamW> optimizer_;
  std::map<int, at::Tensor> outputs_;
};

}  // namespace

DryRunReport run_stage(const Workload& work, const ParallelLayout& layout, int stage, std::int64_t blocks,
                       int microbatches, bool asynchronous, bool trace_memory) {
  const auto schedule = pipeline::make_schedule(layout.schedule, static_cast<int>(layout.pp), microbatches);
  const auto& actions = schedule.ranks[static_cast<std::size_t>(stage)];
  const auto first = pipeline::make_schedule("gpipe", 1, 1).ranks[0];
  const DryRunOptions options{.ranks = static_cast<int>(layout.ranks() / layout.pp),
                              .number = 1,
                              .trace = true,
                              .trace_memory = trace_memory,
                              .asynchronous = asynchronous};
  return dry_run(options, [&](const Communicator& world) {
    StageStep step(work, layout, world, {blocks, stage == 0, stage + 1 == layout.pp});
    step.run(first);  // creates the states of the optimizer
    StepRecorder::begin_step();
    step.run(actions);
  });
}

std::vector<double> measure_steps(const Workload& work, const ParallelLayout& layout, int steps) {
  TORCH_CHECK(layout.pp == 1, "measure_steps: expected a layout without stages, got ", layout.str());
  std::vector<double> seconds;
  const auto actions = pipeline::make_schedule("gpipe", 1, static_cast<int>(layout.microbatches)).ranks[0];
  run_local(static_cast<int>(layout.ranks()), [&](const Communicator& world) {
    StageStep step(work, layout, world, {work.model.layers, true, true});
    step.run(actions);
    for (int i = 0; i < steps; ++i) {
      world.barrier();
      const auto begin = std::chrono::steady_clock::now();
      step.run(actions);
      world.barrier();
      if (world.rank() > 0) continue;
      seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
    }
  });
  return seconds;
}

ModelSize size_of(const Workload& work) {
  const auto& c = work.model;
  ModelSize size;
  auto config = c;
  config.tensor = at::TensorOptions(at::kFloat).device(at::kMeta);
  nn::Decoder model(config);
  for (const auto& [name, tensor] : model.named_parameters()) {
    const auto count = static_cast<double>(tensor->numel());
    size.parameters += count;
    const bool packed = tensor->dim() == 3;
    if (packed) size.expert_parameters += count;
    if (tensor->dim() < 2 || name == "embed.weight") continue;
    const auto& router = c.experts ? c.experts->router : RouterOptions();
    size.active_weights +=
        packed ? count * static_cast<double>(router.top_k) / static_cast<double>(router.experts) : count;
  }
  const auto pairs = static_cast<double>(c.layers * c.heads * c.checked().head_size * work.sequence);
  size.flops_per_token = 6 * size.active_weights + 12 * pairs;
  size.causal_flops_per_token = 6 * size.active_weights + 6 * pairs;
  return size;
}

double utilization(double flops_per_token, const Workload& work, const ParallelLayout& layout,
                   const HardwareModel& hardware, double seconds) {
  const auto peak = hardware.peak_flops.find(layout.bf16 ? "bfloat16" : "float32");
  if (peak == hardware.peak_flops.end() || seconds <= 0) return 0;
  const auto tokens = static_cast<double>(work.batch * work.sequence);
  return flops_per_token * tokens / seconds / static_cast<double>(layout.ranks()) / peak->second;
}

namespace {

class DecoderCost {
 public:
  DecoderCost(const Workload& work, const HardwareModel& hardware, bool exact)
      : work_(work), hardware_(hardware), exact_(exact), size_(size_of(work)), blocks_(work, hardware) {}

  std::string reject(const ParallelLayout& l) const {
    const auto& c = work_.model;
    const auto divides = [](const char* what, std::int64_t size, std::int64_t by, const char* axis) {
      return size % by == 0 ? std::string() : fmt::format("{} {} is not a multiple of {}", what, size, axis);
    };
    const auto& router = c.experts ? c.experts->router : RouterOptions();
    for (const auto& reason : {divides("the heads of keys", c.checked().kv_heads, l.tp, "tp"),
                               divides("the sequence", work_.sequence, l.cp * l.tp, "cp x tp"),
                               divides("the batch", work_.batch, l.replicate * l.shard, "replicate x shard"),
                               c.experts ? divides("the number of experts", router.experts, l.ep, "ep") : "",
                               c.experts ? divides("the ranks of a stage,", l.ranks() / l.pp, l.ep, "ep") : ""}) {
      if (!reason.empty()) return reason;
    }
    if (rank_rows(work_, l) % l.microbatches != 0) return "the sequences of a rank are not a multiple of microbatches";
    if (l.pp > c.layers) return "more stages than layers";
    if (l.pp > 1 && l.microbatches < l.pp) return "fewer microbatches than stages";
    if (!c.experts && l.ep > 1) return "no experts for ep";
    return "";
  }

  // Without the communication of data parallelism, and without temporaries.
  LayoutCost bound(const ParallelLayout& l) {
    const auto block = blocks_.of(l);
    const auto stage = static_cast<double>((work_.model.layers + l.pp - 1) / l.pp);
    const auto microbatches = static_cast<double>(l.microbatches);
    const double in_flight = l.schedule == "gpipe" ? microbatches : static_cast<double>(std::min(l.pp, l.microbatches));
    const double dense =
        (size_.parameters - size_.expert_parameters) / static_cast<double>(l.shard * l.cp * l.tp * l.pp);
    const double share = dense + size_.expert_parameters / static_cast<double>(l.ranks());
    const double kept = stage * in_flight * block.kept_bytes;
    LayoutCost cost;
    cost.seconds = static_cast<double>(l.pp - 1) * stage * block.seconds +
                   microbatches * (stage * block.seconds + block.head_seconds);
    // float: parameter and two states, with the gradient at the update, with activations before backward
    cost.peak_bytes = static_cast<std::int64_t>(std::max(16 * share, 12 * share + kept));
    cost.largest = kept > 4 * share ? fmt::format("activations alone, {:.1f} GB", 1e-9 * kept)
                                    : fmt::format("parameters, gradients and states alone, {:.1f} GB", 16e-9 * share);
    return cost;
  }

  LayoutCost cost(const ParallelLayout& l) const {
    std::vector<StageResult> kinds;  // first, middle and last stage
    for (const int stage : representatives(l)) kinds.push_back(measure(l, stage));
    std::vector<StepEstimate> stages;
    for (int s = 0; s < l.pp; ++s) stages.push_back(kinds[kind_of(l, s)].time);
    const auto schedule = pipeline::make_schedule(l.schedule, static_cast<int>(l.pp), static_cast<int>(l.microbatches));
    const auto step = estimate_pipeline(schedule, stages, message_seconds(l));
    const auto& most =
        *std::max_element(kinds.begin(), kinds.end(), [](const auto& a, const auto& b) { return a.peak() < b.peak(); });
    LayoutCost result;
    result.seconds = step.seconds;
    result.peak_bytes = static_cast<std::int64_t>(most.peak());
    const auto largest = std::max_element(most.memory.begin(), most.memory.end());
    result.largest = fmt::format("{} {:.1f} GB", to_string(static_cast<MemoryKind>(largest - most.memory.begin())),
                                 1e-9 * static_cast<double>(*largest));
    result.explanation = explain(l, kinds[kinds.size() / 2].time, step);
    return result;
  }

 private:
  static constexpr std::int64_t kFew = 3;  // blocks of the smaller run: a first, a last and one between

  static std::vector<int> representatives(const ParallelLayout& l) {
    std::set<int> stages{0, static_cast<int>(l.pp) / 2, static_cast<int>(l.pp) - 1};
    return {stages.begin(), stages.end()};
  }
  static std::size_t kind_of(const ParallelLayout& l, int stage) {
    const auto kinds = representatives(l).size();
    return stage == 0 ? 0 : stage + 1 == l.pp ? kinds - 1 : 1;
  }

  double message_seconds(const ParallelLayout& l) const {
    if (l.pp == 1) return 0;
    const auto rows = rank_rows(work_, l) / l.microbatches;
    const auto bytes = rows * work_.sequence / l.cp / l.tp * work_.model.hidden * (l.bf16 ? 2 : 4);
    return hardware_.seconds("send", {0, l.ranks() / l.pp}, bytes);
  }

  // Microbatches that a stage runs. Time is extrapolated from a few, memory is highest with as many in flight as the
  // schedule has: all in gpipe, in 1f1b as many as there are stages from this one on, and the first has the most.
  std::int64_t microbatches_of(const ParallelLayout& l, int stage) const {
    if (exact_ || l.schedule == "gpipe") return l.microbatches;
    return std::min<std::int64_t>(l.microbatches, stage == 0 && l.pp > 1 ? l.pp + 1 : 3);
  }

  StageResult run(const ParallelLayout& l, int stage, std::int64_t blocks, bool trace_memory) const {
    auto report = run_stage(work_, l, stage, blocks, static_cast<int>(microbatches_of(l, stage)),
                            hardware_.asynchronous, trace_memory);
    return {estimate_step(report.trace, hardware_), report.peak_by_kind, std::move(report.trace)};
  }

  StageResult measure(const ParallelLayout& l, int stage) const {
    const auto blocks = (work_.model.layers + l.pp - 1) / l.pp;
    if (exact_ || blocks <= kFew + 1) return run(l, stage, blocks, /*trace_memory=*/false);
    return extrapolate(run(l, stage, kFew, true), run(l, stage, kFew + 1, true), static_cast<double>(blocks - kFew));
  }

  std::string explain(const ParallelLayout& l, const StepEstimate& stage, const PipelineEstimate& step) const {
    std::string text = stage.shares();
    if (l.pp > 1) text += fmt::format("; bubble {:.0f}%", 100 * step.bubble);
    return text + fmt::format("; MFU {:.1f}% (12LdS), {:.1f}% (6LdS)",
                              100 * utilization(size_.flops_per_token, work_, l, hardware_, step.seconds),
                              100 * utilization(size_.causal_flops_per_token, work_, l, hardware_, step.seconds));
  }

  Workload work_;
  HardwareModel hardware_;
  bool exact_;
  ModelSize size_;
  BlockCosts blocks_;
};

}  // namespace

PlannedProgram planned_decoder(const Workload& work, const HardwareModel& hardware, bool exact) {
  const auto cost = std::make_shared<DecoderCost>(work, hardware, exact);
  return {[cost](const ParallelLayout& l) { return cost->reject(l); },
          [cost](const ParallelLayout& l) { return cost->bound(l); },
          [cost](const ParallelLayout& l) { return cost->cost(l); }};
}

}  // namespace plan
