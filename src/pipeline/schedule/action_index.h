// Where a schedule's actions stand, and which others each of them needs: what everything that follows a schedule
// through time builds on.
#pragma once

#include <c10/util/SmallVector.h>

#include <array>

#include "dtensor/pipeline_schedule.h"

namespace dtensor::pipeline {

struct ActionPosition {
  int rank = -1, at = -1;
  explicit operator bool() const { return rank >= 0; }
  friend bool operator==(const ActionPosition&, const ActionPosition&) = default;
};

// Of a schedule that outlives it. Making it throws unless each stage is on one rank and each action of a microbatch
// stands there once at most.
class ScheduleIndex {
 public:
  explicit ScheduleIndex(const Schedule& schedule);

  const Schedule& schedule() const { return schedule_; }
  int stages() const { return stages_; }
  int microbatches() const { return microbatches_; }
  bool communicates() const { return communicates_; }
  int rank_of(int stage) const { return stage_ranks_[static_cast<std::size_t>(stage)].rank; }

  // False for a stage or a microbatch that is not there.
  ActionPosition find(ActionKind kind, int stage, int microbatch) const;
  ActionPosition find(const Action& action) const { return find(action.kind, action.stage, action.microbatch); }
  // B, or else I.
  ActionPosition find_backward(int stage, int microbatch) const;
  const Action& at(ActionPosition place) const {
    return schedule_.ranks[static_cast<std::size_t>(place.rank)][static_cast<std::size_t>(place.at)];
  }
  // Rank by rank, in order.
  template <class Visitor>
  void for_each(const Visitor& visit) const {
    for (int rank = 0; rank < static_cast<int>(schedule_.ranks.size()); ++rank) {
      const int actions = static_cast<int>(schedule_.ranks[static_cast<std::size_t>(rank)].size());
      for (int at = 0; at < actions; ++at) visit(ActionPosition{rank, at});
    }
  }
  // What the action needs, as far as it is there. Results of a neighbouring stage come by the receive, where the
  // schedule communicates and the stage is on another rank.
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
  std::vector<ActionPosition> stage_ranks_;                          // by stage: its first action
  std::array<std::vector<ActionPosition>, kActionKinds> positions_;  // by kind, of those with a microbatch
};

// The message that an action sends (SEND_F, SEND_B), if its stage has that neighbour on another rank; the receive of
// what an action needs (RECV_F, RECV_B) likewise.
std::optional<Action> send_of(const ScheduleIndex& index, const Action& compute);
std::optional<Action> receive_of(const ScheduleIndex& index, const Action& compute);
// The other end of a message.
Action partner_of(const Action& communication);

}  // namespace dtensor::pipeline
