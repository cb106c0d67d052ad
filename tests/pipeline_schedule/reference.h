// References for the tests of schedules: random valid schedules, a checker and a simulator. They share only the text of
// actions with the library, and are slow and simple: action texts in maps, rules applied until nothing changes.
#pragma once

#include <c10/util/Exception.h>

#include <algorithm>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "dtensor/pipeline_schedule.h"
#include "internal/action_kinds.h"

namespace dtensor::pipeline::reference {

using Words = std::vector<std::vector<std::string>>;  // Action texts, by rank.

inline std::string word(int stage, const std::string& kind, int microbatch) {
  return std::to_string(stage) + kind + std::to_string(microbatch);
}

inline Words words_of(const Schedule& schedule) {
  Words words;
  for (const auto& actions : schedule.ranks) {
    words.emplace_back();
    for (const Action& action : actions) words.back().push_back(to_string(action));
  }
  return words;
}

// The dependencies of `action`: of each set, at least one action must be done.
inline std::vector<std::set<std::string>> dependencies(const Action& action, const std::vector<int>& rank_of,
                                                       bool communicates) {
  using K = Action::Kind;
  const int s = action.stage, m = action.microbatch, last = static_cast<int>(rank_of.size()) - 1;
  const auto elsewhere = [&](int other) { return communicates && rank_of.at(other) != rank_of.at(s); };
  std::vector<std::set<std::string>> all;
  switch (action.kind) {
    case K::forward:
      if (s > 0) all.push_back({elsewhere(s - 1) ? word(s, "RECV_F", m) : word(s - 1, "F", m)});
      break;
    case K::backward:
    case K::backward_input:
      all.push_back({word(s, "F", m)});
      if (s < last && elsewhere(s + 1)) all.push_back({word(s, "RECV_B", m)});
      if (s < last && !elsewhere(s + 1)) all.push_back({word(s + 1, "B", m), word(s + 1, "I", m)});
      break;
    case K::backward_weight:
      all.push_back({word(s, "I", m)});
      break;
    case K::send_forward:
      all.push_back({word(s, "F", m)});
      break;
    case K::send_backward:
      all.push_back({word(s, "B", m), word(s, "I", m)});
      break;
    case K::recv_forward:
      all.push_back({word(s - 1, "SEND_F", m)});
      break;
    case K::recv_backward:
      all.push_back({word(s + 1, "SEND_B", m)});
      break;
    default:
      break;
  }
  return all;
}

struct Facts {
  std::vector<int> rank_of;  // By stage.
  std::map<std::string, int> count;
  std::set<int> sharded;
  int microbatches = 0;
  bool communicates = false, reduces = false;
};

inline std::optional<Facts> facts_of(const Schedule& schedule) {
  Facts facts;
  std::map<int, std::set<int>> ranks;
  for (int rank = 0; rank < static_cast<int>(schedule.ranks.size()); ++rank) {
    for (const Action& action : schedule.ranks[rank]) {
      ranks[action.stage].insert(rank);
      ++facts.count[to_string(action)];
      facts.microbatches = std::max(facts.microbatches, action.microbatch + 1);
      facts.communicates |= is_communication(action.kind);
      facts.reduces |= action.kind == Action::Kind::reduce_grad;
      if (action.kind == Action::Kind::unshard || action.kind == Action::Kind::reshard)
        facts.sharded.insert(action.stage);
    }
  }
  for (const auto& [stage, on] : ranks) {
    if (stage != static_cast<int>(facts.rank_of.size()) || on.size() != 1) return std::nullopt;
    facts.rank_of.push_back(*on.begin());
  }
  return facts;
}

inline bool has_right_counts(Facts& facts) {
  const int stages = static_cast<int>(facts.rank_of.size());
  if (facts.microbatches == 0) return false;
  for (int s = 0; s < stages; ++s) {
    if (facts.reduces && facts.count[std::to_string(s) + "REDUCE_GRAD"] != 1) return false;
    for (int m = 0; m < facts.microbatches; ++m) {
      const auto n = [&](const std::string& kind) { return facts.count[word(s, kind, m)]; };
      if (n("F") != 1 || n("I") != n("W") || n("B") + n("I") != 1) return false;
      const auto message = [&](int other) {
        return facts.communicates && other >= 0 && other < stages && facts.rank_of[other] != facts.rank_of[s];
      };
      if (n("SEND_F") != message(s + 1) || n("RECV_B") != message(s + 1)) return false;
      if (n("SEND_B") != message(s - 1) || n("RECV_F") != message(s - 1)) return false;
    }
  }
  return true;
}

inline bool order_can_be_kept(const Schedule& schedule, const Facts& facts) {
  std::set<std::string> done;
  std::vector<std::size_t> at(schedule.ranks.size());
  for (bool moved = true; moved;) {
    moved = false;
    for (std::size_t rank = 0; rank < at.size(); ++rank) {
      if (at[rank] == schedule.ranks[rank].size()) continue;
      const Action& action = schedule.ranks[rank][at[rank]];
      const auto wants = dependencies(action, facts.rank_of, facts.communicates);
      const bool ready = std::all_of(wants.begin(), wants.end(), [&](const auto& any) {
        return std::any_of(any.begin(), any.end(), [&](const std::string& w) { return done.count(w) > 0; });
      });
      if (!ready) continue;
      done.insert(to_string(action));
      ++at[rank];
      moved = true;
    }
  }
  for (std::size_t rank = 0; rank < at.size(); ++rank) {
    if (at[rank] != schedule.ranks[rank].size()) return false;
  }
  return true;
}

// For each stage: (UNSHARD, computation, RESHARD)* if it is sharded, and no B or W after REDUCE_GRAD.
inline bool has_right_stages(const Schedule& schedule, const Facts& facts) {
  for (int stage = 0; stage < static_cast<int>(facts.rank_of.size()); ++stage) {
    bool open = facts.sharded.count(stage) == 0, reduced = false;
    const bool sharded = !open;
    for (const Action& action : schedule.ranks[facts.rank_of[stage]]) {
      if (action.stage != stage) continue;
      if (is_compute(action.kind) && !open) return false;
      if (is_compute(action.kind) && action.kind != Action::Kind::forward && reduced) return false;
      if (action.kind == Action::Kind::unshard && open) return false;
      if (action.kind == Action::Kind::reshard && !open) return false;
      if (action.kind == Action::Kind::unshard) open = true;
      if (action.kind == Action::Kind::reshard) open = false;
      if (action.kind == Action::Kind::reduce_grad) reduced = true;
    }
    if (sharded && open) return false;
  }
  return true;
}

inline bool is_valid(const Schedule& schedule) {
  std::optional<Facts> facts = facts_of(schedule);
  return facts && has_right_counts(*facts) && order_can_be_kept(schedule, *facts) && has_right_stages(schedule, *facts);
}

// Whether a valid schedule with communication runs if sends and receives wait for each other. Batched: all messages up
// to the next other action start together; otherwise one at a time.
inline bool runs_with_rendezvous_sends(const Schedule& schedule, bool batched) {
  const Facts facts = *facts_of(schedule);
  std::set<std::string> done;  // Unique, except for actions on stages, on which no action depends.
  std::vector<std::size_t> at(schedule.ranks.size());
  const auto on_offer = [&](std::size_t rank) {
    std::set<std::string> words;
    const auto& actions = schedule.ranks[rank];
    for (std::size_t i = at[rank]; i < actions.size() && is_communication(actions[i].kind); ++i) {
      words.insert(to_string(actions[i]));
      if (!batched) break;
    }
    return words;
  };
  for (bool moved = true; moved;) {
    moved = false;
    std::set<std::string> offers;
    for (std::size_t rank = 0; rank < at.size(); ++rank) offers.merge(on_offer(rank));
    for (const std::string& w : offers) {
      const Action send = Schedule::parse(w).ranks[0][0];
      const bool forward = send.kind == Action::Kind::send_forward;
      if (!forward && send.kind != Action::Kind::send_backward) continue;
      const std::string receive = word(send.stage + (forward ? 1 : -1), forward ? "RECV_F" : "RECV_B", send.microbatch);
      if (offers.count(receive) > 0 && done.insert(w).second) {
        done.insert(receive);
        moved = true;
      }
    }
    for (std::size_t rank = 0; rank < at.size(); ++rank) {
      const auto& actions = schedule.ranks[rank];
      const std::set<std::string> offered = on_offer(rank);
      if (!offered.empty()) {
        const bool all = std::all_of(offered.begin(), offered.end(), [&](const auto& w) { return done.count(w) > 0; });
        if (all) at[rank] += offered.size();
        moved |= all;
      } else if (at[rank] < actions.size()) {
        const auto wants = dependencies(actions[at[rank]], facts.rank_of, facts.communicates);
        const bool ready = std::all_of(wants.begin(), wants.end(), [&](const auto& any) {
          return std::any_of(any.begin(), any.end(), [&](const std::string& w) { return done.count(w) > 0; });
        });
        if (ready) done.insert(to_string(actions[at[rank]++]));
        moved |= ready;
      }
    }
  }
  for (std::size_t rank = 0; rank < at.size(); ++rank) {
    if (at[rank] != schedule.ranks[rank].size()) return false;
  }
  return true;
}

// The end of each action of a valid schedule with the given costs: times are raised until no action starts too early.
inline std::vector<std::vector<double>> ends(const Schedule& schedule,
                                             const std::function<double(const Action&)>& cost) {
  const Facts facts = *facts_of(schedule);
  std::vector<std::vector<double>> end;
  for (const auto& actions : schedule.ranks) end.emplace_back(actions.size(), 0.);
  std::map<std::string, double> there;  // When the result of an action is available.
  for (bool changed = true; changed;) {
    changed = false;
    for (std::size_t r = 0; r < end.size(); ++r) {
      for (std::size_t i = 0; i < end[r].size(); ++i) {
        const Action& action = schedule.ranks[r][i];
        double begin = i == 0 ? 0 : end[r][i - 1];
        for (const auto& any : dependencies(action, facts.rank_of, facts.communicates)) {
          for (const std::string& w : any) begin = std::max(begin, there[w]);
        }
        const bool sends = action.kind == Action::Kind::send_forward || action.kind == Action::Kind::send_backward;
        const double ended = begin + (sends ? 0 : cost(action));
        changed |= ended > end[r][i];
        end[r][i] = ended;
        there[to_string(action)] = begin + cost(action);
      }
    }
  }
  return end;
}

// Stages on any ranks, some backwards split, in any order that the dependencies allow. Computation only.
inline Schedule random_schedule(std::mt19937_64& random, int most_ranks = 4, int most_stages = 6,
                                int most_microbatches = 5) {
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  const int ranks = 1 + below(most_ranks), stages = ranks + below(std::max(1, most_stages - ranks + 1)),
            microbatches = 1 + below(most_microbatches);
  std::vector<int> rank_of(stages);
  for (int s = 0; s < stages; ++s) rank_of[s] = s < ranks ? s : below(ranks);
  std::shuffle(rank_of.begin(), rank_of.end(), random);
  std::vector<Action> todo;
  for (int s = 0; s < stages; ++s) {
    for (int m = 0; m < microbatches; ++m) {
      todo.push_back({Action::Kind::forward, s, m});
      const bool split = below(2) == 0;
      todo.push_back({split ? Action::Kind::backward_input : Action::Kind::backward, s, m});
      if (split) todo.push_back({Action::Kind::backward_weight, s, m});
    }
  }
  Schedule schedule;
  schedule.ranks.resize(static_cast<std::size_t>(ranks));
  std::set<std::string> done;
  while (!todo.empty()) {
    std::shuffle(todo.begin(), todo.end(), random);
    std::erase_if(todo, [&](const Action& action) {
      const auto wants = dependencies(action, rank_of, false);
      const bool ready = std::all_of(wants.begin(), wants.end(), [&](const auto& any) {
        return std::any_of(any.begin(), any.end(), [&](const std::string& w) { return done.count(w) > 0; });
      });
      if (!ready) return false;
      done.insert(to_string(action));
      schedule.ranks[static_cast<std::size_t>(rank_of[action.stage])].push_back(action);
      return true;
    });
  }
  return schedule;
}

inline std::string error_of(const std::function<void()>& run) {
  try {
    run();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "";
}

}  // namespace dtensor::pipeline::reference
