// Replays the trace of a step on a stream of operators and on one stream of collectives for each mesh axis.
#include <algorithm>
#include <numeric>

#include "dtensor/estimate.h"
#include "estimate/kind_name.h"

namespace dtensor {
namespace {

class Replay {
 public:
  Replay(const StepTrace& trace, const HardwareModel& hardware)
      : trace_(trace), hardware_(hardware), ends_(trace.events.size(), -1) {}

  StepEstimate run() {
    for (std::size_t i = 0; i < trace_.events.size(); ++i) add(i);
    for (const auto& [axis, end] : busy_until_) wait_until(end, axis);
    end_mark();
    result_.seconds = now_;
    return result_;
  }

 private:
  void add(std::size_t i) {
    const auto& event = trace_.events[i];
    switch (event.kind) {
      case StepTrace::Kind::collective:
        return start(i);
      case StepTrace::Kind::wait:
        return wait_until(ends_[static_cast<std::size_t>(event.start)], axis_of(event));
      case StepTrace::Kind::mark:
        end_mark();
        result_.marks.emplace_back(trace_.names[static_cast<std::size_t>(event.name)], 0);
        marked_at_ = now_;
        return;
      default:
        const double seconds = hardware_.seconds(event, trace_.names[static_cast<std::size_t>(event.name)]);
        now_ += seconds;
        result_.compute += seconds;
        result_.compute_by_kind[kind_name(event.kind)] += seconds;
    }
  }

  void start(std::size_t i) {
    const auto& event = trace_.events[i];
    if (event.group < 0) return;  // a message: its time depends on the peer (estimate_pipeline)
    const std::string& axis = axis_of(event);
    const double seconds = seconds_of(event);
    double& busy = busy_until_[axis];
    busy = std::max(busy, now_) + seconds;
    ends_[i] = busy;
    result_.communication += seconds;
    result_.communication_by_axis[axis] += seconds;
    if (!hardware_.asynchronous) wait_until(busy, axis);
  }

  // Groups may have thousands of members, and many calls are equal.
  double seconds_of(const StepTrace::Event& event) {
    double& per_call = known_[{event.name, event.group, event.bytes}];
    if (per_call == 0) {
      per_call = hardware_.seconds(trace_.names[static_cast<std::size_t>(event.name)],
                                   trace_.groups[static_cast<std::size_t>(event.group)].ranks, event.bytes);
    }
    return per_call;
  }

  void wait_until(double end, const std::string& axis) {
    if (end <= now_) return;
    result_.exposed += end - now_;
    result_.exposed_by_axis[axis] += end - now_;
    now_ = end;
  }

  void end_mark() {
    if (!result_.marks.empty()) result_.marks.back().second = now_ - marked_at_;
  }

  const std::string& axis_of(const StepTrace::Event& event) const {
    static const std::string none;
    return event.group < 0 ? none : trace_.groups[static_cast<std::size_t>(event.group)].axis;
  }

  const StepTrace& trace_;
  const HardwareModel& hardware_;
  std::vector<double> ends_;  // of collectives, by event
  std::map<std::string, double> busy_until_;
  std::map<std::tuple<std::int32_t, std::int32_t, std::int64_t>, double> known_;
  double now_ = 0, marked_at_ = 0;
  StepEstimate result_;
};

using pipeline::ActionKind;

std::optional<ActionKind> action_of(const std::string& mark) {
  const auto letter = mark.find_first_not_of("0123456789");
  if (letter == 0 || letter == std::string::npos) return std::nullopt;
  try {
    return pipeline::Schedule::parse(mark).ranks.at(0).at(0).kind;
  } catch (const c10::Error&) {
    return std::nullopt;
  }
}

struct StageCost {
  double forward = 0, backward = 0;  // of a microbatch
  double outside = 0;                // the rest of the step
};

double mean(const std::vector<double>& values) {
  return values.empty() ? 0 : std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

// The first forward pass may gather parameters and the last backward pass reduce gradients: once in a step.
StageCost cost_of(const StepEstimate& stage) {
  std::vector<double> forward, backward;
  for (const auto& [name, seconds] : stage.marks) {
    const auto kind = action_of(name);
    if (kind == ActionKind::forward) forward.push_back(seconds);
    if (kind == ActionKind::backward) backward.push_back(seconds);
  }
  const auto passes = static_cast<double>(forward.size());
  if (forward.size() > 1) forward.erase(forward.begin());
  if (backward.size() > 1) backward.pop_back();
  const StageCost cost{mean(forward), mean(backward)};
  return {cost.forward, cost.backward, std::max(0.0, stage.seconds - passes * (cost.forward + cost.backward))};
}

}  // namespace

StepEstimate estimate_step(const StepTrace& trace, const HardwareModel& hardware) {
  return Replay(trace, hardware).run();
}

PipelineEstimate estimate_pipeline(const pipeline::Schedule& schedule, const std::vector<StepEstimate>& stages,
                                   double message_seconds) {
  TORCH_CHECK(static_cast<int>(stages.size()) == schedule.stages(), "estimate_pipeline: expected the times of ",
              schedule.stages(), " stages, got ", stages.size());
  std::vector<StageCost> costs;
  double outside = 0;
  for (const auto& stage : stages) outside = std::max(outside, costs.emplace_back(cost_of(stage)).outside);
  const auto cost = [&](const pipeline::Action& action) {
    const bool sends = action.kind == ActionKind::send_forward || action.kind == ActionKind::send_backward;
    if (!pipeline::is_compute(action.kind)) return sends ? message_seconds : 0;
    const auto& stage = costs[static_cast<std::size_t>(action.stage)];
    if (action.kind == ActionKind::forward) return stage.forward;
    if (action.kind == ActionKind::backward) return stage.backward;
    return stage.backward / 2;  // a part of a split backward pass
  };
  const auto timeline = pipeline::simulate(
      pipeline::with_communication(schedule, {.unsharded_stages = std::nullopt, .reduce_grad = false}), cost);
  return {timeline.makespan + outside, timeline.bubble};
}

}  // namespace dtensor
