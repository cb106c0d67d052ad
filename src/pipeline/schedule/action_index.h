// The position of each action of a schedule, and the actions that it depends on. All analyses of schedules use it.
#pragma once

#include <c10/util/SmallVector.h>

#include <array>

#include "dtensor/pipeline_schedule.h"
#include "internal/action_kinds.h"

namespace dtensor::pipeline {

struct ActionPosition {
  int rank = -1, at = -1;
  explicit operator bool() const { return rank >= 0; }
  friend bool operator==(const ActionPosition&, const ActionPosition&) = default;
};

// Index of a schedule, which must outlive it. The constructor throws unless each stage is on one rank and each action
// of a microbatch occurs at most once.
class ScheduleIndex {
 public:
  explicit ScheduleIndex(const Schedule& schedule);

  const Schedule& schedule() const { return schedule_; }
  int stages() const { return stages_; }
  int microbatches() const { return microbatches_; }
  bool communicates() const { return communicates_; }
  int rank_of(int stage) const { return stage_ranks_[static_cast<std::size_t>(stage)].rank; }

  // False if there is no such stage or microbatch.
  ActionPosition find(Action::Kind kind, int stage, int microbatch) const;
  ActionPosition find(const Action& action) const { return find(action.kind, action.stage, action.microbatch); }
  // B, or otherwise I.
  ActionPosition find_backward(int stage, int microbatch) const;
  const Action& at(ActionPosition place) const {
    return schedule_.ranks[static_cast<std::size_t>(place.rank)][static_cast<std::size_t>(place.at)];
  }
  // Visits all positions rank by rank, in order.
  template <class Visitor>
  void for_each(const Visitor& visit) const {
    for (int rank = 0; rank < static_cast<int>(schedule_.ranks.size()); ++rank) {
      const int actions = static_cast<int>(schedule_.ranks[static_cast<std::size_t>(rank)].size());
      for (int at = 0; at < actions; ++at) visit(ActionPosition{rank, at});
    }
  }
  // The existing actions on which the action depends. If the schedule communicates, results of a stage on
  // another rank come from the receive.
  c10::SmallVector<ActionPosition, 2> needs(const Action& action) const;

  // `1F0 (rank 1, action 3)`.
  std::string name(ActionPosition place) const;

 private:
  std::size_t number(int stage, int microbatch) const {
    return static_cast<std::size_t>(stage) * static_cast<std::size_t>(microbatches_) +
           static_cast<std::size_t>(microbatch);
  }
  void check_numbers();
  void enter(ActionPosition place);

  const Schedule& schedule_;
  int stages_, microbatches_;
  bool communicates_ = false;
  std::vector<ActionPosition> stage_ranks_;                          // by stage: the position of its first action
  std::array<std::vector<ActionPosition>, kActionKinds> positions_;  // by kind, for actions with a microbatch
};

// The message that sends the result of an action (SEND_F, SEND_B), if the neighboring stage exists and is on another
// rank; and the receive of the input of an action (RECV_F, RECV_B), likewise.
std::optional<Action> send_of(const ScheduleIndex& index, const Action& compute);
std::optional<Action> receive_of(const ScheduleIndex& index, const Action& compute);
// The matching receive of a send, or send of a receive.
Action partner_of(const Action& communication);

}  // namespace dtensor::pipeline
