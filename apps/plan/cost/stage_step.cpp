#include "plan/cost/stage_step.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <atomic>
#include <chrono>

#include "dtensor/launch.h"
#include "dtensor/tensor.h"
#include "llm/stage.h"
#include "train/model/model.h"
#include "train/model/optimizer.h"

namespace plan {

using namespace dtensor;

std::int64_t rank_rows(const Workload& work, const ParallelLayout& layout) {
  return work.batch / (layout.replicate * layout.shard);
}

namespace {

nn::DecoderConfig with_parameters(nn::DecoderConfig config, const ParallelLayout& layout) {
  if (layout.bf16_parameters) config.tensor = config.tensor.dtype(at::kBFloat16);
  return config;
}

bool is_backward(const pipeline::Action& action) { return action.kind == pipeline::Action::Kind::backward; }

// One rank of a stage during a step: the microbatches in flight, and the optimizer.
class StageStep {
 public:
  StageStep(const Workload& work, const ParallelLayout& layout, const Communicator& world, Part part)
      : work_(work),
        layout_(layout),
        part_(part),
        mesh_(init_device_mesh(world, at::kCPU, {layout.replicate, layout.shard, layout.cp, layout.tp},
                               {"replicate", "shard", "cp", "tp"})),
        decoder_(with_parameters(last_blocks(work.model, part.blocks), layout)),
        stage_(decoder_, {0, part.blocks, part.first, part.last}) {
    stage_.distribute(mesh_, layout);
    stage_.reset();
    optimizer_.emplace(llm::distinct(stage_.named_parameters()),
                       train::OptimizerOptions{.name = layout.optimizer, .muon_experts = true});
  }

  void run(const std::vector<pipeline::Action>& actions) {
    auto left = std::count_if(actions.begin(), actions.end(), is_backward);
    for (const auto& action : actions) {
      StepRecorder::mark(to_string(action));
      is_backward(action) ? backward(action.microbatch, --left == 0) : forward(action.microbatch);
    }
    StepRecorder::mark("update");
    optimizer_->step();
  }

 private:
  std::int64_t rows() const { return rank_rows(work_, layout_) / layout_.microbatches; }

  at::Tensor ids() const {
    const auto local = at::zeros({rows(), work_.sequence / layout_.cp}, at::kLong);
    return DTensor::from_local(local, mesh_, llm::Stage::placements(),
                               {rows() * layout_.replicate * layout_.shard, work_.sequence});
  }

  // Activations or their gradients between two stages.
  at::Tensor activations() const {
    const auto local = at::empty({rows(), work_.sequence / layout_.cp / layout_.tp, work_.model.hidden},
                                 layout_.bf16 ? at::kBFloat16 : at::kFloat);
    return DTensor::from_local(local, mesh_, llm::Stage::placements(/*activations=*/true),
                               {rows() * layout_.replicate * layout_.shard, work_.sequence, work_.model.hidden});
  }

  void forward(int microbatch) {
    const auto output = stage_(part_.first ? ids() : activations().detach().requires_grad_()).y;
    outputs_[microbatch] = part_.last ? train::token_loss(output, ids()) : output;
  }

  // Microbatches before this one whose backward pass does not run are dropped.
  void backward(int microbatch, bool last) {
    outputs_.erase(outputs_.begin(), outputs_.find(microbatch));
    const at::Tensor output = std::move(outputs_.extract(microbatch).mapped());
    stage_.backward(output, part_.last ? at::Tensor() : activations(), last);
  }

  const Workload& work_;
  const ParallelLayout& layout_;
  Part part_;
  DeviceMesh mesh_;
  nn::Decoder decoder_;
  llm::Stage stage_;
  std::optional<train::Optimizer> optimizer_;
  std::map<int, at::Tensor> outputs_;
};

}  // namespace

std::vector<pipeline::Action> StageRun::actions() const {
  using Kind = pipeline::Action::Kind;
  std::vector<pipeline::Action> all;
  for (int m = 0; m < in_flight; ++m) all.push_back({Kind::forward, 0, m});
  for (int m = 0; m < microbatches; ++m) {
    const int next = m + in_flight;
    const bool skips = m > 1 && next > microbatches && m + 1 < microbatches;
    if (every_backward || !skips) all.push_back({Kind::backward, 0, m});
    if (next < microbatches) all.push_back({Kind::forward, 0, next});
  }
  return all;
}

DryRunReport run_stage(const Workload& work, const ParallelLayout& layout, const StageRun& run,
                       const DryRunOptions& options) {
  auto how = options;
  how.ranks = static_cast<int>(layout.ranks() / layout.pp), how.number = 1, how.trace = true;
  return dry_run(how, [&](const Communicator& world) {
    StageStep step(work, layout, world, run.part);
    step.run(StageRun{}.actions());  // creates the states of the optimizer
    StepRecorder::begin_step();
    step.run(run.actions());
  });
}

StepTrace without_data_parallelism(StepTrace trace, const std::set<std::string>& but) {
  for (auto& event : trace.events) {
    if (event.of_unit) event = {.kind = StepTrace::Kind::collective, .name = event.name};  // takes no time
    if (event.kind != StepTrace::Kind::collective || event.group < 0) continue;
    const auto& axis = trace.groups[static_cast<std::size_t>(event.group)].axis;
    if (axis != "tp" && axis != "cp" && axis != "ep" && !but.contains(axis)) event.group = -1;
  }
  return trace;
}

namespace {

// Calls fn with the step of each thread rank, and what it runs, after a first step.
template <class Fn>
void train(const Workload& work, const ParallelLayout& layout, const Fn& fn) {
  TORCH_CHECK(layout.pp == 1, "expected a layout without stages, got ", layout.str());
  const auto actions = StageRun{.microbatches = static_cast<int>(layout.microbatches)}.actions();
  run_local(static_cast<int>(layout.ranks()), [&](const Communicator& world) {
    const StepRecorder recorder;
    StageStep step(work, layout, world, {work.model.layers, true, true});
    step.run(actions);
    StepRecorder::begin_step();
    fn(world, recorder, [&] { step.run(actions); });
  });
}

}  // namespace

std::vector<double> measure_steps(const Workload& work, const ParallelLayout& layout, int steps) {
  std::vector<double> seconds;
  train(work, layout, [&](const Communicator& world, const StepRecorder&, const auto& step) {
    for (int i = 0; i < steps; ++i) {
      world.barrier();
      const auto begin = std::chrono::steady_clock::now();
      step();
      world.barrier();
      if (world.rank() > 0) continue;
      seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
    }
  });
  return seconds;
}

std::int64_t measure_peak(const Workload& work, const ParallelLayout& layout) {
  std::atomic<std::int64_t> peak{0};
  train(work, layout, [&](const Communicator& world, const StepRecorder& recorder, const auto& step) {
    step();
    const auto mine = recorder.report(world).peak.bytes;
    for (auto most = peak.load(); most < mine && !peak.compare_exchange_weak(most, mine);) {
    }
  });
  return peak;
}

}  // namespace plan
