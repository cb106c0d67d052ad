// Replays the trace of a step on a stream of operators and on one stream of collectives for each mesh axis.
#define FMT_HEADER_ONLY
#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "dtensor/estimate.h"
#include "estimate/kind_name.h"
#include "estimate/replay.h"
#include "internal/action_kinds.h"

namespace dtensor {
namespace {

class Replay {
 public:
  // With a timeline, the slices and the times of events are added to it.
  Replay(const StepTrace& trace, const HardwareModel& hardware, ReplayTimeline* timeline = nullptr)
      : trace_(trace), hardware_(hardware), timeline_(timeline), ends_(trace.events.size(), -1) {}

  StepEstimate run() {
    for (std::size_t i = 0; i < trace_.events.size(); ++i) add(i);
    for (const auto& [axis, end] : busy_until_) wait_until(end, axis, -1);
    end_mark();
    result_.seconds = now_;
    return result_;
  }

 private:
  void add(std::size_t i) {
    const auto& event = trace_.events[i];
    if (timeline_ != nullptr) timeline_->times.push_back(now_);
    switch (event.kind) {
      case StepTrace::Kind::collective:
        return start(i);
      case StepTrace::Kind::wait:
        return wait_until(ends_[static_cast<std::size_t>(event.start)], axis_of(event), event.start);
      case StepTrace::Kind::mark:
        end_mark();
        result_.marks.emplace_back(trace_.names[static_cast<std::size_t>(event.name)], 0);
        marked_at_ = now_;
        return;
      default:
        const double seconds = hardware_.seconds(event, trace_.names[static_cast<std::size_t>(event.name)]);
        note(static_cast<std::int64_t>(i), "", now_, now_ + seconds, /*wait=*/false);
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
    note(static_cast<std::int64_t>(i), axis, busy - seconds, busy, /*wait=*/false);
    result_.communication += seconds;
    result_.communication_by_axis[axis] += seconds;
    if (!hardware_.asynchronous) wait_until(busy, axis, static_cast<std::int64_t>(i));
  }

  void note(std::int64_t event, const std::string& stream, double begin, double end, bool wait) const {
    if (timeline_ == nullptr) return;
    timeline_->slices.push_back({stream, name_of(event), begin, end, wait, event});
  }

  std::string name_of(std::int64_t event) const {
    if (event < 0) return "end of the step";
    return trace_.names[static_cast<std::size_t>(trace_.events[static_cast<std::size_t>(event)].name)];
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

  // For a collective, by its event.
  void wait_until(double end, const std::string& axis, std::int64_t event) {
    if (end <= now_) return;
    note(event, "", now_, end, /*wait=*/true);
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
  ReplayTimeline* timeline_;
  std::vector<double> ends_;  // of collectives, by event
  std::map<std::string, double> busy_until_;
  std::map<std::tuple<std::int32_t, std::int32_t, std::int64_t>, double> known_;
  double now_ = 0, marked_at_ = 0;
  StepEstimate result_;
};

using pipeline::Action;

std::optional<pipeline::Action> action_of(const std::string& mark) {
  const auto letter = mark.find_first_not_of("0123456789");
  if (letter == 0 || letter == std::string::npos) return std::nullopt;
  try {
    return pipeline::Schedule::parse(mark).ranks.at(0).at(0);
  } catch (const c10::Error&) {
    return std::nullopt;
  }
}

struct RankCost {
  std::map<std::pair<int, Action::Kind>, double> actions;  // mean seconds by stage and kind
  double outside = 0;                                      // the rest of the step
};

double mean(const std::vector<double>& values) {
  return values.empty() ? 0 : std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

std::vector<int> stages_of(const std::vector<pipeline::Action>& actions) {
  std::set<int> stages;
  for (const auto& action : actions) stages.insert(action.stage);
  return {stages.begin(), stages.end()};
}

// The first forward pass may gather parameters, the first backward pass has no gradients to add to, and the last one
// may reduce them: once in a step. The stages of the marks are those of the schedule in the same order.
RankCost cost_of(const StepEstimate& rank, const std::vector<int>& stages) {
  std::vector<pipeline::Action> marked;
  std::map<std::pair<int, Action::Kind>, std::vector<double>> times;
  for (const auto& [name, seconds] : rank.marks) {
    const auto action = action_of(name);
    if (!action || !pipeline::is_compute(action->kind)) continue;
    marked.push_back(*action);
    times[{action->stage, action->kind}].push_back(seconds);
  }
  const auto names = stages_of(marked);
  TORCH_CHECK(names.size() == stages.size(), "estimate_pipeline: expected marks of ", stages.size(),
              " stages (StepRecorder::mark), got marks of ", names.size());
  RankCost cost{{}, rank.seconds};
  for (auto& [key, all] : times) {
    const auto [name, kind] = key;
    const auto count = static_cast<double>(all.size());
    if (all.size() > 1) all.erase(kind == Action::Kind::forward ? all.begin() : all.end() - 1);
    if (all.size() > 1 && kind != Action::Kind::forward) all.erase(all.begin());
    const auto place = std::find(names.begin(), names.end(), name) - names.begin();
    cost.actions[{stages[static_cast<std::size_t>(place)], kind}] = mean(all);
    cost.outside -= count * mean(all);
  }
  cost.outside = std::max(0.0, cost.outside);
  return cost;
}

}  // namespace

ReplayTimeline replay(const StepTrace& trace, const HardwareModel& hardware) {
  ReplayTimeline timeline;
  timeline.estimate = Replay(trace, hardware, &timeline).run();
  return timeline;
}

std::string StepEstimate::shares() const {
  std::string text = "operators";
  for (const auto& [kind, time] : compute_by_kind) text += fmt::format(" {} {:.0f}%", kind, 100 * time / seconds);
  text += "; waits";
  for (const auto& [axis, time] : exposed_by_axis) text += fmt::format(" {} {:.0f}%", axis, 100 * time / seconds);
  return text;
}

StepEstimate estimate_step(const StepTrace& trace, const HardwareModel& hardware) {
  return Replay(trace, hardware).run();
}

PipelineEstimate estimate_pipeline(const pipeline::Schedule& schedule, const std::vector<StepEstimate>& ranks,
                                   double message_seconds) {
  TORCH_CHECK(ranks.size() == schedule.ranks.size(), "estimate_pipeline: expected the times of ", schedule.ranks.size(),
              " ranks, got ", ranks.size());
  std::map<std::pair<int, Action::Kind>, double> seconds;
  double outside = 0;
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    auto cost = cost_of(ranks[r], stages_of(schedule.ranks[r]));
    outside = std::max(outside, cost.outside);
    seconds.merge(cost.actions);
  }
  const auto cost = [&](const pipeline::Action& action) {
    const bool sends = action.kind == Action::Kind::send_forward || action.kind == Action::Kind::send_backward;
    if (!pipeline::is_compute(action.kind)) return sends ? message_seconds : 0;
    const auto known = seconds.find({action.stage, action.kind});
    TORCH_CHECK(known != seconds.end(), "estimate_pipeline: expected a mark of the kind of ", to_string(action));
    return known->second;
  };
  const auto timeline = pipeline::simulate(
      pipeline::with_communication(schedule, {.unsharded_stages = std::nullopt, .reduce_grad = false}), cost);
  return {timeline.makespan + outside, timeline.bubble};
}

}  // namespace dtensor
