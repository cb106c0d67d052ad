// Ranks take turns; each runs until its next step waits. A step is one action, or with batched sends a sequence of
// communication actions, which start together. When no rank can continue, each waits for an action of a rank that also
// waits, so following these dependencies leads to a cycle.
#include "pipeline/schedule/progress.h"
#include "internal/action_kinds.h"

#include <c10/util/StringUtil.h>

#include <algorithm>

namespace dtensor::pipeline {
namespace {

class Follower {
 public:
  Follower(const ScheduleIndex& index, SendMode sends, const std::function<void(ActionPosition)>& visit)
      : index_(index), sends_(sends), visit_(visit), steps_(index.schedule().ranks.size()) {
    for (std::size_t rank = 0; rank < steps_.size(); ++rank) steps_[rank].end = step_end(rank, 0);
  }

  std::string run() {
    for (bool moved = true; moved;) {
      moved = false;
      for (std::size_t rank = 0; rank < steps_.size(); ++rank) {
        while (!finished(rank) && !waits(rank).by) {
          complete(rank);
          moved = true;
        }
      }
    }
    for (std::size_t rank = 0; rank < steps_.size(); ++rank) {
      if (!finished(rank)) return cycle(rank);
    }
    return "";
  }

 private:
  struct Step {
    int begin = 0, end = 0;  // indices of actions on the rank; earlier ones are done
  };
  struct Wait {
    ActionPosition by, waits_for;
  };

  const std::vector<Action>& actions(std::size_t rank) const { return index_.schedule().ranks[rank]; }
  bool finished(std::size_t rank) const { return steps_[rank].begin == static_cast<int>(actions(rank).size()); }

  int step_end(std::size_t rank, int begin) const {
    const auto first = actions(rank).begin() + begin;
    if (first == actions(rank).end()) return begin;
    if (sends_ != SendMode::batched || !is_communication(first->kind)) return begin + 1;
    const auto last =
        std::find_if(first, actions(rank).end(), [](const Action& a) { return !is_communication(a.kind); });
    return static_cast<int>(last - actions(rank).begin());
  }

  void complete(std::size_t rank) {
    Step& step = steps_[rank];
    for (int at = step.begin; visit_ && at < step.end; ++at) visit_({static_cast<int>(rank), at});
    step = {step.end, step_end(rank, step.end)};
  }

  // The first action of the rank's step that waits, and the action that it waits for.
  Wait waits(std::size_t rank) const {
    for (int at = steps_[rank].begin; at < steps_[rank].end; ++at) {
      const ActionPosition place{static_cast<int>(rank), at};
      const Action& action = index_.at(place);
      for (const ActionPosition need : index_.needs(action)) {
        if (!fulfilled(need, action)) return {place, need};
      }
      const bool sends = action.kind == Action::Kind::send_forward || action.kind == Action::Kind::send_backward;
      const ActionPosition receive =
          sends && sends_ != SendMode::buffered ? index_.find(partner_of(action)) : ActionPosition();
      if (receive && !started(receive)) return {place, receive};
    }
    return {};
  }
  bool started(ActionPosition place) const { return place.at < steps_[static_cast<std::size_t>(place.rank)].end; }
  // With buffered sends, a message is available after its send; otherwise as soon as both ends have started.
  bool fulfilled(ActionPosition need, const Action& action) const {
    const bool receives = action.kind == Action::Kind::recv_forward || action.kind == Action::Kind::recv_backward;
    if (receives && sends_ != SendMode::buffered) return started(need);
    return need.at < steps_[static_cast<std::size_t>(need.rank)].begin;
  }

  std::string cycle(std::size_t rank) const {
    std::vector<std::size_t> seen;
    auto begin = seen.end();
    for (; (begin = std::find(seen.begin(), seen.end(), rank)) == seen.end();) {
      seen.push_back(rank);
      rank = static_cast<std::size_t>(waits(rank).waits_for.rank);
    }
    std::vector<std::string> words;
    for (; begin != seen.end(); ++begin) {
      const Wait wait = waits(*begin);
      words.push_back(index_.name(wait.by) + " waits for " + index_.name(wait.waits_for));
    }
    return c10::Join(", on whose rank ", words);
  }

  const ScheduleIndex& index_;
  SendMode sends_;
  const std::function<void(ActionPosition)>& visit_;
  std::vector<Step> steps_;
};

}  // namespace

std::string replay(const ScheduleIndex& index, SendMode sends, const std::function<void(ActionPosition)>& visit) {
  return Follower(index, sends, visit).run();
}

}  // namespace dtensor::pipeline
