// Properties of a schedule's actions: its size, the ranks of its stages, its live activations.
#include <c10/util/Exception.h>

#include <algorithm>

#include "dtensor/pipeline_schedule.h"

namespace dtensor::pipeline {
namespace {

int count_from_highest(const Schedule& schedule, int Action::*number) {
  int highest = -1;
  for (const std::vector<Action>& actions : schedule.ranks) {
    for (const Action& action : actions) highest = std::max(highest, action.*number);
  }
  return highest + 1;
}

}  // namespace

int Schedule::stages() const { return count_from_highest(*this, &Action::stage); }
int Schedule::microbatches() const { return count_from_highest(*this, &Action::microbatch); }

int Schedule::rank_of(int stage) const {
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    const auto here = [&](const Action& action) { return action.stage == stage; };
    if (std::any_of(ranks[rank].begin(), ranks[rank].end(), here)) return static_cast<int>(rank);
  }
  TORCH_CHECK(false, "pipeline schedule: no rank has stage ", stage, " of ", stages());
}

bool Schedule::has(Action::Kind kind) const {
  return std::any_of(ranks.begin(), ranks.end(), [&](const std::vector<Action>& actions) {
    return std::any_of(actions.begin(), actions.end(), [&](const Action& action) { return action.kind == kind; });
  });
}

Schedule forward_only(const Schedule& schedule) {
  Schedule forward = schedule;
  for (std::vector<Action>& actions : forward.ranks) {
    std::erase_if(actions, [](const Action& action) { return action.kind != Action::Kind::forward; });
  }
  return forward;
}

std::vector<int> live_activations(const Schedule& schedule) {
  const bool stores = schedule.has(Action::Kind::backward) || schedule.has(Action::Kind::backward_input);
  std::vector<int> most(schedule.ranks.size(), 0);
  for (std::size_t rank = 0; stores && rank < most.size(); ++rank) {
    int live = 0;
    for (const Action& action : schedule.ranks[rank]) {
      live += action.kind == Action::Kind::forward;
      live -= action.kind == Action::Kind::backward || action.kind == Action::Kind::backward_weight;
      most[rank] = std::max(most[rank], live);
    }
  }
  return most;
}

}  // namespace dtensor::pipeline
