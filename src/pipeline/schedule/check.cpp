// Verifies a schedule, from missing actions to wrong order; each error names the two actions. Whether dependencies come
// before, and whether a rank waits for itself, is one question: whether the actions can be replayed to the end.
#include <c10/util/Exception.h>

#include <algorithm>
#include <map>

#include "internal/action_kinds.h"
#include "pipeline/schedule/progress.h"

namespace dtensor::pipeline {
namespace {

template <class... Words>
[[noreturn]] void refuse(const Words&... words) {
  TORCH_CHECK(false, "pipeline schedule: ", words...);
}

// The action that shows that an action of this stage and microbatch is expected: the last of both, otherwise of the
// microbatch, otherwise of the stage.
ActionPosition evidence(const ScheduleIndex& index, int stage, int microbatch) {
  ActionPosition best;
  int score = 0;
  index.for_each([&](ActionPosition place) {
    const Action& action = index.at(place);
    const int shows = 2 * (action.microbatch == microbatch) + (action.stage == stage);
    if (shows >= score) best = place;
    score = std::max(score, shows);
  });
  return best;
}

void check_size(const ScheduleIndex& index, const Schedule::Limits& limits) {
  TORCH_CHECK(limits.stages == 0 || limits.stages == index.stages(), "pipeline schedule: expected ", limits.stages,
              " stages, got ", index.stages());
  TORCH_CHECK(limits.microbatches == 0 || limits.microbatches == index.microbatches(), "pipeline schedule: expected ",
              limits.microbatches, " microbatches, got ", index.microbatches());
  for (int stage = 0; stage < index.stages(); ++stage) {
    if (index.rank_of(stage) >= 0) continue;
    refuse("incomplete: ", to_string({Action::Kind::forward, stage, 0}), " is on no rank, but there is ",
           index.name(evidence(index, index.stages() - 1, -1)));
  }
}

void check_compute(const ScheduleIndex& index, int stage, int microbatch, bool forward_only) {
  const auto find = [&](Action::Kind kind) { return index.find(kind, stage, microbatch); };
  const auto require = [&](Action::Kind kind) {
    if (find(kind)) return;
    refuse("incomplete: ", to_string({kind, stage, microbatch}), " of rank ", index.rank_of(stage),
           " is missing, but there is ", index.name(evidence(index, stage, microbatch)));
  };
  require(Action::Kind::forward);
  const ActionPosition fused = find(Action::Kind::backward), input = find(Action::Kind::backward_input),
                       weight = find(Action::Kind::backward_weight);
  if (forward_only) {
    for (const ActionPosition place : {fused, input, weight}) {
      if (place)
        refuse("gradients in a forward-only schedule: ", index.name(find(Action::Kind::forward)), " and ",
               index.name(place));
    }
    return;
  }
  if (fused && (input || weight)) {
    refuse("two backwards of one microbatch: ", index.name(fused), " and ", index.name(input ? input : weight));
  }
  if (fused) return;
  require(input || weight ? Action::Kind::backward_input : Action::Kind::backward);
  require(Action::Kind::backward_weight);
}

// Checks that both ends of the message with the result of `place` exist, unless the neighbor is on the same rank.
void check_message(const ScheduleIndex& index, ActionPosition place) {
  const std::optional<Action> send = send_of(index, index.at(place));
  if (!send) return;
  const Action receive = partner_of(*send);
  const ActionPosition sent = index.find(*send), received = index.find(receive);
  if (sent && received) return;
  refuse("unmatched: ", to_string(sent ? receive : *send), " of rank ",
         index.rank_of(sent ? receive.stage : send->stage), " is missing for ",
         index.name(sent       ? sent
                    : received ? received
                               : place));
}

// Checks that a message carries a result to a stage on another rank.
void check_needed(const ScheduleIndex& index, ActionPosition place) {
  const Action& action = index.at(place);
  const bool sends = action.kind == Action::Kind::send_forward || action.kind == Action::Kind::send_backward;
  const Action send = sends ? action : partner_of(action);
  const bool forward = send.kind == Action::Kind::send_forward;
  const ActionPosition producer = forward ? index.find(Action::Kind::forward, send.stage, send.microbatch)
                                          : index.find_backward(send.stage, send.microbatch);
  if (producer && send_of(index, index.at(producer)) == send) return;
  const Action other = partner_of(action);
  refuse("unmatched: ", index.name(place), " and ", to_string(other),
         producer ? ", whose stages are neighbors on one rank or do not exist" : ", whose data is never computed");
}

void check_complete(const ScheduleIndex& index, bool forward_only) {
  for (int stage = 0; stage < index.stages(); ++stage) {
    for (int microbatch = 0; microbatch < index.microbatches(); ++microbatch) {
      check_compute(index, stage, microbatch, forward_only);
      if (!index.communicates()) continue;
      check_message(index, index.find(Action::Kind::forward, stage, microbatch));
      if (!forward_only) check_message(index, index.find_backward(stage, microbatch));
    }
  }
}

// Checks UNSHARD, RESHARD, REDUCE_GRAD and live activations of each stage, in the order of its rank.
class StageStates {
 public:
  StageStates(const ScheduleIndex& index, const Schedule::Limits& limits) : index_(index), limits_(limits) {}

  void visit(ActionPosition place) {
    const Action& action = index_.at(place);
    if (is_compute(action.kind)) compute(place, stages_[action.stage]);
    if (is_communication(action.kind)) check_needed(index_, place);
    if (action.kind == Action::Kind::unshard || action.kind == Action::Kind::reshard)
      shard(place, stages_[action.stage]);
    if (action.kind == Action::Kind::reduce_grad) reduce(place, stages_[action.stage]);
  }
  void finish(bool reduced) const {
    for (const auto& [stage, state] : stages_) {
      if (state.unsharded)
        refuse("never resharded: ", index_.name(state.sharding), " is followed by no RESHARD, but by ",
               index_.name(state.last));
      if (reduced && !state.reduced) {
        refuse("never reduced: ", to_string({Action::Kind::reduce_grad, stage}), " is missing after ",
               index_.name(state.last));
      }
    }
  }

 private:
  struct State {
    bool unsharded = false;
    ActionPosition sharding;  // the last UNSHARD or RESHARD
    ActionPosition early;     // a computation before the first UNSHARD or RESHARD
    ActionPosition last;      // the last computation
    ActionPosition reduced;
    std::vector<ActionPosition> live;  // forwards with live activations, oldest first
  };

  void compute(ActionPosition place, State& state) {
    const Action& action = index_.at(place);
    if (state.sharding && !state.unsharded) {
      refuse("computes with weights that are freed: ", index_.name(place), " after ", index_.name(state.sharding));
    }
    if (!state.sharding && !state.early) state.early = place;
    if (state.reduced && action.kind != Action::Kind::forward) {
      refuse("reduces gradients too early: ", index_.name(state.reduced), " before ", index_.name(place));
    }
    state.last = place;
    if (!limits_.forward_only) hold(place, state.live);
  }
  void hold(ActionPosition place, std::vector<ActionPosition>& live) {
    const Action& action = index_.at(place);
    if (action.kind == Action::Kind::forward) {
      live.push_back(place);
      const bool bounded = limits_.live_microbatches > 0;
      if (bounded && live.size() > static_cast<std::size_t>(limits_.live_microbatches)) {
        refuse("memory: ", index_.name(place), " would be activations number ", live.size(),
               " of its stage; the oldest are those of ", index_.name(live.front()), ", the limit is ",
               limits_.live_microbatches);
      }
    } else if (action.kind != Action::Kind::backward_input) {
      std::erase_if(live, [&](ActionPosition forward) { return index_.at(forward).microbatch == action.microbatch; });
    }
  }
  void shard(ActionPosition place, State& state) {
    const bool unshards = index_.at(place).kind == Action::Kind::unshard;
    if (state.early)
      refuse("computes before its weights are unsharded: ", index_.name(state.early), " and ", index_.name(place));
    if (unshards == state.unsharded) {
      refuse(unshards ? "already unsharded: " : "not unsharded: ", index_.name(place), " after ",
             state.sharding ? index_.name(state.sharding)
                            : "no " + to_string({Action::Kind::unshard, index_.at(place).stage}));
    }
    state.unsharded = unshards;
    state.sharding = place;
  }
  void reduce(ActionPosition place, State& state) {
    if (limits_.forward_only) refuse("gradients in a forward-only schedule: ", index_.name(place));
    if (state.reduced) refuse("reduces gradients twice: ", index_.name(state.reduced), " and ", index_.name(place));
    state.reduced = place;
  }

  const ScheduleIndex& index_;
  const Schedule::Limits& limits_;
  std::map<int, State> stages_;
};

void check_stage_states(const ScheduleIndex& index, const Schedule::Limits& limits) {
  const bool reduced = index.schedule().has(Action::Kind::reduce_grad);
  StageStates states(index, limits);
  index.for_each([&](ActionPosition place) { states.visit(place); });
  states.finish(reduced);
}

// Whether each rank receives the messages of each peer in the order in which they are sent.
bool received_in_order(const ScheduleIndex& index) {
  std::map<std::pair<int, int>, int> latest;  // by sender and receiver: the last send that was received
  bool in_order = true;
  index.for_each([&](ActionPosition place) {
    const Action& action = index.at(place);
    if (action.kind != Action::Kind::recv_forward && action.kind != Action::Kind::recv_backward) return;
    const ActionPosition send = index.find(partner_of(action));
    int& last = latest.try_emplace({send.rank, place.rank}, -1).first->second;
    in_order = in_order && last < send.at;
    last = send.at;
  });
  return in_order;
}

}  // namespace

Schedule::Report check(const Schedule& schedule, const Schedule::Limits& limits) {
  const ScheduleIndex index(schedule);
  check_size(index, limits);
  check_complete(index, limits.forward_only);
  check_stage_states(index, limits);
  const std::string deadlock = replay(index, SendMode::buffered);
  TORCH_CHECK(deadlock.empty(), "pipeline schedule: the order cannot be kept: ", deadlock);
  return {received_in_order(index), replay(index, SendMode::batched), replay(index, SendMode::rendezvous),
          live_activations(schedule)};
}

}  // namespace dtensor::pipeline
