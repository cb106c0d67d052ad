// Inserts communication between a schedule's computations. The actions of each rank depend only on what the other ranks
// compute and send, and in which order.
#include <c10/util/Exception.h>

#include <algorithm>
#include <map>
#include <set>

#include "internal/action_kinds.h"
#include "pipeline/schedule/action_index.h"

namespace dtensor::pipeline {
namespace {

// Actions of a rank before which their stage is unsharded, and after which it is resharded.
struct ShardPlan {
  std::vector<bool> unshard, reshard;
};

ShardPlan plan_shards(const std::vector<Action>& actions, std::optional<int> most_unsharded) {
  ShardPlan plan{std::vector<bool>(actions.size()), std::vector<bool>(actions.size())};
  if (!most_unsharded) return plan;
  std::vector<std::size_t> next(actions.size(), actions.size());  // next use of the same stage
  std::map<int, std::size_t> upcoming;
  for (std::size_t i = actions.size(); i-- > 0;) {
    const auto [entry, last] = upcoming.try_emplace(actions[i].stage, i);
    if (!last) next[i] = entry->second;
    entry->second = i;
  }
  std::map<int, std::size_t> unsharded;  // stage to its last use so far
  const auto free = [&](std::map<int, std::size_t>::iterator stage) {
    plan.reshard[stage->second] = true;
    unsharded.erase(stage);
  };
  for (std::size_t i = 0; i < actions.size(); ++i) {
    plan.unshard[i] = !unsharded.contains(actions[i].stage);
    if (plan.unshard[i] && static_cast<int>(unsharded.size()) == *most_unsharded) {
      free(std::max_element(unsharded.begin(), unsharded.end(),
                            [&](const auto& a, const auto& b) { return next[a.second] < next[b.second]; }));
    }
    unsharded[actions[i].stage] = i;
  }
  while (!unsharded.empty()) free(unsharded.begin());
  return plan;
}

// By rank: the messages before each of its actions, and after its last.
using Gaps = std::vector<std::vector<std::vector<Action>>>;

Gaps no_messages(const Schedule& schedule) {
  Gaps gaps;
  for (const std::vector<Action>& actions : schedule.ranks) gaps.emplace_back(actions.size() + 1);
  return gaps;
}

std::vector<Action>& gap(Gaps& gaps, int rank, int at) {
  return gaps[static_cast<std::size_t>(rank)][static_cast<std::size_t>(at)];
}

// A send follows the computation of its data; a receive precedes the use, after all earlier messages of the same
// sender.
Gaps late_receives(const ScheduleIndex& index) {
  struct Channel {
    std::vector<Action> receives;  // in the order of their sends
    std::size_t received = 0;
  };
  std::map<std::pair<int, int>, Channel> channels;  // by sender and receiver
  const auto channel = [&](const Action& receive) -> Channel& {
    return channels[{index.rank_of(partner_of(receive).stage), index.rank_of(receive.stage)}];
  };
  Gaps gaps = no_messages(index.schedule());
  index.for_each([&](ActionPosition place) {
    const std::optional<Action> send = send_of(index, index.at(place));
    if (!send) return;
    gap(gaps, place.rank, place.at + 1).push_back(*send);
    channel(partner_of(*send)).receives.push_back(partner_of(*send));
  });
  index.for_each([&](ActionPosition place) {
    const std::optional<Action> needed = receive_of(index, index.at(place));
    if (!needed) return;
    Channel& from = channel(*needed);
    const auto begin = from.receives.begin() + static_cast<std::ptrdiff_t>(from.received);
    const auto found = std::find(begin, from.receives.end(), *needed);
    if (found == from.receives.end()) return;  // inserted with an earlier receive
    std::vector<Action>& here = gap(gaps, place.rank, place.at);
    here.insert(here.end(), begin, found + 1);
    from.received = static_cast<std::size_t>(found + 1 - from.receives.begin());
  });
  return gaps;
}

// Places both ends of a message at the simulated time at which it is sent. All ranks order their messages and
// computations by this time, so no rank waits for itself.
Gaps simultaneous_ends(const ScheduleIndex& index) {
  const Timeline timeline = simulate(index.schedule());
  std::vector<std::pair<double, ActionPosition>> made;  // producers of messages, by time
  index.for_each([&](ActionPosition place) {
    const auto& rank = timeline.ranks[static_cast<std::size_t>(place.rank)];
    if (send_of(index, index.at(place))) made.emplace_back(rank[static_cast<std::size_t>(place.at)].end, place);
  });
  std::stable_sort(made.begin(), made.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  Gaps gaps = no_messages(index.schedule());
  for (const auto& [time, place] : made) {
    const Action send = *send_of(index, index.at(place)), receive = partner_of(send);
    gap(gaps, place.rank, place.at + 1).push_back(send);
    const int receiver = index.rank_of(receive.stage);
    const auto& rank = timeline.ranks[static_cast<std::size_t>(receiver)];
    const auto next = std::partition_point(rank.begin(), rank.end(),
                                           [now = time](const TimedAction& timed) { return timed.begin < now; });
    gap(gaps, receiver, static_cast<int>(next - rank.begin())).push_back(receive);
  }
  return gaps;
}

// Marks the last B or W of each stage, by index on the rank.
std::vector<bool> last_gradients(const std::vector<Action>& actions) {
  std::vector<bool> last(actions.size());
  std::set<int> seen;
  for (std::size_t i = actions.size(); i-- > 0;) {
    const Action::Kind kind = actions[i].kind;
    const bool gradient = kind == Action::Kind::backward || kind == Action::Kind::backward_weight;
    last[i] = gradient && seen.insert(actions[i].stage).second;
  }
  return last;
}

// Places RESHARD and REDUCE_GRAD after the rank's sends and before its receives.
std::vector<Action> merge(const std::vector<Action>& actions, const std::vector<std::vector<Action>>& messages,
                          const CommunicationOptions& options) {
  const ShardPlan shards = plan_shards(actions, options.unsharded_stages);
  const std::vector<bool> last_gradient = last_gradients(actions);
  std::vector<Action> out;
  for (std::size_t i = 0; i <= actions.size(); ++i) {
    const auto sent = std::find_if(messages[i].rbegin(), messages[i].rend(), [](const Action& action) {
                        return action.kind == Action::Kind::send_forward || action.kind == Action::Kind::send_backward;
                      }).base();
    out.insert(out.end(), messages[i].begin(), sent);
    if (i > 0 && shards.reshard[i - 1]) out.push_back({Action::Kind::reshard, actions[i - 1].stage});
    if (i > 0 && last_gradient[i - 1] && options.reduce_grad) {
      out.push_back({Action::Kind::reduce_grad, actions[i - 1].stage});
    }
    if (i < actions.size() && shards.unshard[i]) out.push_back({Action::Kind::unshard, actions[i].stage});
    out.insert(out.end(), sent, messages[i].end());
    if (i < actions.size()) out.push_back(actions[i]);
  }
  return out;
}

// Whether a schedule may already contain an action of this kind: only if the options do not add it.
bool may_be_there(Action::Kind kind, const CommunicationOptions& options) {
  const bool shards = kind == Action::Kind::unshard || kind == Action::Kind::reshard;
  return is_compute(kind) || (shards && !options.unsharded_stages) ||
         (kind == Action::Kind::reduce_grad && !options.reduce_grad);
}

}  // namespace

Schedule with_communication(const Schedule& schedule, const CommunicationOptions& options) {
  TORCH_CHECK(!options.unsharded_stages || *options.unsharded_stages >= 1,
              "pipeline schedule: expected unsharded_stages >= 1, got ", options.unsharded_stages.value_or(0));
  const ScheduleIndex index(schedule);
  index.for_each([&](ActionPosition place) {
    TORCH_CHECK(may_be_there(index.at(place).kind, options),
                "pipeline schedule: expected computation only, but it communicates already: ", index.name(place));
  });
  check(schedule,
        {.forward_only = !schedule.has(Action::Kind::backward) && !schedule.has(Action::Kind::backward_input)});
  const Gaps messages = options.rendezvous ? simultaneous_ends(index) : late_receives(index);
  Schedule result;
  for (std::size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
    result.ranks.push_back(merge(schedule.ranks[rank], messages[rank], options));
  }
  return result;
}

}  // namespace dtensor::pipeline
