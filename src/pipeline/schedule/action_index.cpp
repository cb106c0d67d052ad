// Tables of positions by kind, stage and microbatch, in which dependencies are looked up.
#include "pipeline/schedule/action_index.h"
#include "internal/action_kinds.h"

#include <c10/util/Exception.h>

namespace dtensor::pipeline {
namespace {

bool is_backward_part(Action::Kind kind) {
  return kind == Action::Kind::backward || kind == Action::Kind::backward_input;
}

}  // namespace

ScheduleIndex::ScheduleIndex(const Schedule& schedule)
    : schedule_(schedule), stages_(schedule.stages()), microbatches_(schedule.microbatches()) {
  check_numbers();
  stage_ranks_.resize(static_cast<std::size_t>(stages_));
  for (std::vector<ActionPosition>& positions : positions_) {
    positions.resize(static_cast<std::size_t>(stages_) * static_cast<std::size_t>(microbatches_));
  }
  for_each([&](ActionPosition place) { enter(place); });
}

// Checks that the schedule has at least one action per stage and microbatch, which also bounds the size of the tables.
void ScheduleIndex::check_numbers() {
  ActionPosition stage, microbatch;
  std::int64_t actions = 0;
  for_each([&](ActionPosition place) {
    const Action& action = at(place);
    const bool numbered = has_microbatch(action.kind) ? action.microbatch >= 0 : action.microbatch == -1;
    TORCH_CHECK(action.stage >= 0 && numbered,
                "pipeline schedule: expected a stage >= 0 and a microbatch (>= 0, or -1 without one), got stage ",
                action.stage, " and microbatch ", action.microbatch, " in ", name(place));
    if (action.stage == stages_ - 1) stage = place;
    if (action.microbatch == microbatches_ - 1) microbatch = place;
    ++actions;
  });
  TORCH_CHECK(microbatches_ > 0, "pipeline schedule: expected computation, but nothing is computed in it");
  TORCH_CHECK(std::int64_t{stages_} * microbatches_ <= actions, "pipeline schedule: incomplete: ", name(stage), " and ",
              name(microbatch), " require ", stages_, " stages and ", microbatches_,
              " microbatches, but there are only ", actions, " actions");
}

void ScheduleIndex::enter(ActionPosition place) {
  const Action& action = at(place);
  ActionPosition& first = stage_ranks_[static_cast<std::size_t>(action.stage)];
  if (!first) first = place;
  TORCH_CHECK(first.rank == place.rank, "pipeline schedule: stage ", action.stage, " is on two ranks: ", name(first),
              " and ", name(place));
  communicates_ |= is_communication(action.kind);
  if (!has_microbatch(action.kind)) return;
  ActionPosition& entry = positions_[static_cast<std::size_t>(action.kind)][number(action.stage, action.microbatch)];
  TORCH_CHECK(!entry, "pipeline schedule: the same action twice: ", name(entry), " and ", name(place));
  entry = place;
}

ActionPosition ScheduleIndex::find(Action::Kind kind, int stage, int microbatch) const {
  const bool there = stage >= 0 && stage < stages_ && microbatch >= 0 && microbatch < microbatches_;
  return there ? positions_[static_cast<std::size_t>(kind)][number(stage, microbatch)] : ActionPosition();
}

ActionPosition ScheduleIndex::find_backward(int stage, int microbatch) const {
  const ActionPosition fused = find(Action::Kind::backward, stage, microbatch);
  return fused ? fused : find(Action::Kind::backward_input, stage, microbatch);
}

c10::SmallVector<ActionPosition, 2> ScheduleIndex::needs(const Action& action) const {
  const auto [kind, stage, microbatch] = action;
  c10::SmallVector<ActionPosition, 2> found;
  const auto add = [&](ActionPosition place) {
    if (place) found.push_back(place);
  };
  if (kind == Action::Kind::backward_weight) add(find(Action::Kind::backward_input, stage, microbatch));
  if (kind == Action::Kind::send_forward || is_backward_part(kind)) add(find(Action::Kind::forward, stage, microbatch));
  if (kind == Action::Kind::send_backward) add(find_backward(stage, microbatch));
  if (kind == Action::Kind::recv_forward || kind == Action::Kind::recv_backward) add(find(partner_of(action)));
  const std::optional<Action> receive = communicates_ ? receive_of(*this, action) : std::nullopt;
  if (receive) {
    add(find(*receive));
  } else if (kind == Action::Kind::forward) {
    add(find(Action::Kind::forward, stage - 1, microbatch));
  } else if (is_backward_part(kind)) {
    add(find_backward(stage + 1, microbatch));
  }
  return found;
}

std::string ScheduleIndex::name(ActionPosition place) const {
  return c10::str(at(place), " (rank ", place.rank, ", action ", place.at, ")");
}

std::optional<Action> send_of(const ScheduleIndex& index, const Action& compute) {
  const bool forward = compute.kind == Action::Kind::forward;
  const int neighbor = compute.stage + (forward ? 1 : -1);
  if (!forward && !is_backward_part(compute.kind)) return std::nullopt;
  if (neighbor < 0 || neighbor == index.stages() || index.rank_of(neighbor) == index.rank_of(compute.stage)) {
    return std::nullopt;
  }
  return Action{forward ? Action::Kind::send_forward : Action::Kind::send_backward, compute.stage, compute.microbatch};
}

std::optional<Action> receive_of(const ScheduleIndex& index, const Action& compute) {
  Action producer = compute;
  producer.stage += compute.kind == Action::Kind::forward ? -1 : 1;
  if (producer.stage < 0 || producer.stage == index.stages()) return std::nullopt;
  const std::optional<Action> send = send_of(index, producer);
  return send ? std::optional(partner_of(*send)) : std::nullopt;
}

Action partner_of(const Action& communication) {
  const auto [kind, stage, microbatch] = communication;
  switch (kind) {
    case Action::Kind::send_forward:
      return {Action::Kind::recv_forward, stage + 1, microbatch};
    case Action::Kind::recv_forward:
      return {Action::Kind::send_forward, stage - 1, microbatch};
    case Action::Kind::send_backward:
      return {Action::Kind::recv_backward, stage - 1, microbatch};
    case Action::Kind::recv_backward:
      return {Action::Kind::send_backward, stage + 1, microbatch};
    default:
      TORCH_CHECK(false, "pipeline schedule: ", to_string(communication), " has no other end");
  }
}

}  // namespace dtensor::pipeline
