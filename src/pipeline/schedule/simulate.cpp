// Computes when the actions of a schedule run, and what they wait for: along the dependencies, each action as early as
// possible.
#include <c10/util/Exception.h>

#include <algorithm>

#include "internal/action_kinds.h"
#include "pipeline/schedule/progress.h"

namespace dtensor::pipeline {
namespace {

class Simulation {
 public:
  Simulation(const ScheduleIndex& index, const std::function<double(const Action&)>& cost)
      : index_(index), cost_(cost) {
    for (const std::vector<Action>& actions : index.schedule().ranks) {
      timeline_.ranks.emplace_back(actions.size());
      causes_.emplace_back(actions.size());
    }
  }

  void visit(ActionPosition place) {
    const Action& action = index_.at(place);
    TimedAction& timed = at(place);
    timed.action = action;
    ActionPosition& cause = causes_[static_cast<std::size_t>(place.rank)][static_cast<std::size_t>(place.at)];
    if (place.at > 0) cause = {place.rank, place.at - 1};
    timed.begin = cause ? at(cause).end : 0;
    double ready = timed.begin;
    for (const ActionPosition need : index_.needs(action)) {
      const double there = at(need).end + (receives(action) ? cost(need) : 0);
      if (there > ready) cause = need;
      ready = std::max(ready, there);
    }
    const bool sends = is_communication(action.kind) && !receives(action);
    if (!receives(action)) timed.begin = ready;
    timed.end = ready + (sends ? 0 : cost(place));
    if (is_compute(action.kind)) computed_ += timed.end - timed.begin;
    if (!last_ || timed.end > at(last_).end) last_ = place;
  }

  Timeline finish() {
    timeline_.makespan = last_ ? at(last_).end : 0;
    const double space = timeline_.makespan * static_cast<double>(timeline_.ranks.size());
    timeline_.bubble = space > 0 ? 1 - computed_ / space : 0;
    for (ActionPosition place = last_; place;
         place = causes_[static_cast<std::size_t>(place.rank)][static_cast<std::size_t>(place.at)]) {
      timeline_.critical_path.push_back(index_.at(place));
    }
    std::reverse(timeline_.critical_path.begin(), timeline_.critical_path.end());
    return std::move(timeline_);
  }

 private:
  static bool receives(const Action& action) {
    return action.kind == Action::Kind::recv_forward || action.kind == Action::Kind::recv_backward;
  }
  TimedAction& at(ActionPosition place) {
    return timeline_.ranks[static_cast<std::size_t>(place.rank)][static_cast<std::size_t>(place.at)];
  }
  double cost(ActionPosition place) const {
    const double cost = cost_(index_.at(place));
    TORCH_CHECK(cost >= 0, "pipeline schedule: expected a cost >= 0 of ", index_.name(place), ", got ", cost);
    return cost;
  }

  const ScheduleIndex& index_;
  const std::function<double(const Action&)>& cost_;
  Timeline timeline_;
  std::vector<std::vector<ActionPosition>> causes_;  // by action: the action at whose end it begins
  ActionPosition last_;
  double computed_ = 0;
};

}  // namespace

double Costs::operator()(const Action& action) const {
  const auto of_stage = [&](double seconds) {
    if (stages.empty()) return seconds;
    TORCH_CHECK(action.stage < static_cast<int>(stages.size()), "pipeline schedule: expected costs of all stages, got ",
                stages.size(), " costs, but there is ", to_string(action));
    return seconds * stages[static_cast<std::size_t>(action.stage)];
  };
  switch (action.kind) {
    case Action::Kind::forward:
      return of_stage(forward);
    case Action::Kind::backward:
      return of_stage(backward);
    case Action::Kind::backward_input:
      return of_stage(backward_input);
    case Action::Kind::backward_weight:
      return of_stage(backward_weight);
    case Action::Kind::send_forward:
    case Action::Kind::send_backward:
      return communication;
    case Action::Kind::unshard:
      return unshard;
    case Action::Kind::reshard:
      return reshard;
    case Action::Kind::reduce_grad:
      return reduce_grad;
    default:
      return 0;
  }
}

Timeline simulate(const Schedule& schedule, const std::function<double(const Action&)>& cost) {
  const ScheduleIndex index(schedule);
  Simulation simulation(index, cost);
  const std::string deadlock =
      replay(index, SendMode::buffered, [&](ActionPosition place) { simulation.visit(place); });
  TORCH_CHECK(deadlock.empty(), "pipeline schedule: the order cannot be kept: ", deadlock);
  return simulation.finish();
}

}  // namespace dtensor::pipeline
