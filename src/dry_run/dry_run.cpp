// Runs one rank with simulated tensors and collectives, and reports what it needs.
#include "dtensor/dry_run.h"

#include <cstdio>
#include <mutex>

#include "comm/launch/launchers.h"
#include "dry_run/state.h"
#include "internal/ranks/simulated_rank.h"
#include "internal/simulated.h"
#include "internal/simulated_load.h"

namespace dtensor {

bool is_dry_run() { return is_simulating(); }

namespace {

constexpr std::int64_t kPeakOnly = std::int64_t{1} << 62;  // resolution of a timeline that keeps no samples

}  // namespace

struct StepRecorder::State {
  MemoryTimeline memory{kPeakOnly};
  CommDebugMode collectives;
  MemoryTimeline::Sample before = {};
  std::optional<ScopedValue<State*>> current;
};

StepRecorder::StepRecorder() : state_(std::make_unique<State>()) {
  state_->current.emplace(state_.get(), Recompute::unchanged);
}
StepRecorder::~StepRecorder() = default;

void StepRecorder::begin_step() {
  const auto* current = ScopedValue<State*>::current();
  if (current == nullptr) return;
  State& state = **current;
  if (state.memory.peak().bytes > state.before.bytes) state.before = state.memory.peak();
  state.memory.reset_peak();
  state.collectives.reset();
  auto* simulated = dry::current_state();
  if (simulated == nullptr) return;
  simulated->operators.clear();
  if (simulated->trace) simulated->trace->clear();
}

void StepRecorder::mark(const std::string& name) {
  auto* simulated = dry::current_state();
  if (simulated != nullptr && simulated->trace) simulated->trace->add({.kind = StepTrace::Kind::mark}, name);
}

DryRunReport StepRecorder::report(const Communicator& world) const {
  DryRunReport report;
  report.rank = world.rank();
  report.ranks = world.size();
  report.peak = state_->memory.peak();
  report.peak_by_kind = state_->memory.peak_by_kind();
  report.peak_before = state_->before;
  report.holders = state_->memory.holders_at_peak();
  for (const auto& [key, count] : state_->collectives.counts()) {
    CommDebugMode::Count& sum = report.collectives[{key.kind, key.axis}];
    sum.calls += count.calls;
    sum.bytes += count.bytes;
  }
  return report;
}

namespace {

// Adds the collectives and waits of this thread to the trace, if there is one.
std::optional<EventListener> listen(const std::shared_ptr<dry::State>& state) {
  if (!state->trace) return std::nullopt;
  return std::optional<EventListener>(
      std::in_place, [state](const Event& event) { state->trace->add(event); },
      EventListener::Kinds{Event::Kind::collective, Event::Kind::wait});
}

DryRunReport run_one(const Communicator& world, const DryRunOptions& options,
                     const std::function<void(Communicator)>& fn) {
  const auto state = std::make_shared<dry::State>();
  state->number = options.number;
  if (options.trace) state->trace.emplace();
  const dry::SimulationScope simulated(state);
  const ScopedValue<SimulatedExpertLoad> load({options.expert_load}, Recompute::unchanged);
  const auto listener = listen(state);
  const StepRecorder recorder;
  std::optional<MemoryTimeline> memory;
  if (state->trace && options.trace_memory) state->trace->watch(memory.emplace(kPeakOnly));
  fn(world);
  DryRunReport report = recorder.report(world);
  report.operators = state->operators;
  if (state->trace) report.trace = state->trace->take();
  return report;
}

}  // namespace

DryRunReport dry_run(const DryRunOptions& options, const std::function<void(Communicator)>& fn) {
  TORCH_CHECK(options.ranks >= 1, "dry_run: expected at least 1 rank, got ", options.ranks);
  TORCH_CHECK(options.rank >= 0 && options.rank < options.ranks, "dry_run: expected a rank in [0, ", options.ranks,
              "), got ", options.rank);
  TORCH_CHECK(options.expert_load >= 1, "dry_run: expected an expert_load of at least 1 (the mean load), got ",
              options.expert_load);
  std::mutex mutex;
  std::map<int, DryRunReport> reports;
  const SimulatedRanks which{options.ranks, options.rank, options.asynchronous, options.staging};
  run_simulated_rank(which, [&](const Communicator& world) {
    auto report = run_one(world, options, fn);
    const std::lock_guard lock(mutex);
    reports[world.rank()] = std::move(report);
  });
  DryRunReport report = std::move(reports.at(options.rank));
  reports.erase(options.rank);
  for (auto& [rank, peer] : reports) report.peers.push_back(std::move(peer));
  return report;
}

namespace {

int run_and_print(const DryRunRequest& which, const std::function<void(Communicator)>& fn) {
  const auto report =
      dry_run({.ranks = which.ranks, .rank = which.rank, .number = which.number, .staging = which.staging}, fn);
  std::fputs(report.table().c_str(), stdout);
  return 0;
}

const bool registered = (register_simulation_main(&run_and_print), true);

}  // namespace
}  // namespace dtensor
