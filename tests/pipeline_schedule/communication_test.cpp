// Actions that with_communication() adds. They cause no waiting: each computation starts as early as if messages needed
// no receive action.
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include "internal/action_kinds.h"
#include "pipeline_schedule/reference.h"

namespace dtensor::pipeline {
namespace {

using reference::error_of;
using reference::random_schedule;

Schedule some_schedule(std::mt19937_64& random) {
  if (random() % 3 != 0) return random_schedule(random);
  const std::string& name = schedule_names()[random() % schedule_names().size()];
  return make_schedule(name, 1 + static_cast<int>(random() % 5), 1 + static_cast<int>(random() % 7));
}

Schedule only_computation(Schedule schedule) {
  for (auto& actions : schedule.ranks) std::erase_if(actions, [](const Action& a) { return !is_compute(a.kind); });
  return schedule;
}

// The end of each action if a message is available `latency` after the end of the action that computes it, without
// receives.
std::vector<std::vector<double>> independent_end_times(const Schedule& schedule,
                                                       const std::function<double(const Action&)>& cost,
                                                       double latency) {
  std::vector<std::vector<double>> end;
  for (const auto& actions : schedule.ranks) end.emplace_back(actions.size(), 0.);
  std::vector<int> rank_of;
  for (int s = 0; s < schedule.stages(); ++s) rank_of.push_back(schedule.rank_of(s));
  std::map<std::string, std::pair<double, int>> made;
  for (bool changed = true; changed;) {
    changed = false;
    for (std::size_t r = 0; r < end.size(); ++r) {
      for (std::size_t i = 0; i < end[r].size(); ++i) {
        const Action& action = schedule.ranks[r][i];
        double begin = i == 0 ? 0 : end[r][i - 1];
        for (const auto& any : reference::dependencies(action, rank_of, false)) {
          for (const std::string& w : any) {
            const auto found = made.find(w);
            if (found == made.end()) continue;
            begin = std::max(begin, found->second.first + (found->second.second == static_cast<int>(r) ? 0 : latency));
          }
        }
        changed |= begin + cost(action) > end[r][i];
        end[r][i] = begin + cost(action);
        made[to_string(action)] = {end[r][i], static_cast<int>(r)};
      }
    }
  }
  return end;
}

TEST(Communication, KeepsComputationTimes) {
  EXPECT_TRUE(rc::check([] {
    std::mt19937_64 random(*rc::gen::arbitrary<std::uint64_t>());
    const Schedule schedule = some_schedule(random);
    const Schedule complete = with_communication(schedule);
    RC_ASSERT(only_computation(complete) == schedule);
    Costs costs{.forward = 1. + static_cast<double>(random() % 4), .backward = 1. + static_cast<double>(random() % 5)};
    costs.communication = static_cast<double>(random() % 3) / 2;
    for (int s = 0; s < schedule.stages(); ++s) costs.stages.push_back(1 + static_cast<double>(random() % 3));
    const auto expected = independent_end_times(schedule, costs, costs.communication);
    const Timeline timeline = simulate(complete, costs);
    for (std::size_t rank = 0; rank < expected.size(); ++rank) {
      std::vector<double> ends;
      for (const TimedAction& timed : timeline.ranks[rank]) {
        if (is_compute(timed.action.kind)) ends.push_back(timed.end);
      }
      RC_ASSERT(ends == expected[rank]);
    }
  }));
}

TEST(Communication, SendsFollowTheirActionAndReceivesPrecedeTheirUse) {
  const Schedule complete =
      with_communication(make_schedule("1f1b", 2, 2), {.unsharded_stages = std::nullopt, .reduce_grad = false});
  EXPECT_EQ(complete.str(),
            "0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0B0 0RECV_B1 0B1\n"
            "1RECV_F0 1F0 1B0 1SEND_B0 1RECV_F1 1F1 1B1 1SEND_B1\n");
  EXPECT_EQ(with_communication(make_schedule("zbv", 2, 1)).str(),
            "0UNSHARD 0F0 0SEND_F0 0RESHARD 3UNSHARD 3RECV_F0 3F0 3I0 3SEND_B0 3W0 3RESHARD 3REDUCE_GRAD "
            "0UNSHARD 0RECV_B0 0I0 0W0 0RESHARD 0REDUCE_GRAD\n"
            "1UNSHARD 1RECV_F0 1F0 1RESHARD 2UNSHARD 2F0 2SEND_F0 2RECV_B0 2I0 2W0 2RESHARD 2REDUCE_GRAD "
            "1UNSHARD 1I0 1SEND_B0 1W0 1RESHARD 1REDUCE_GRAD\n");
}

// Rank 1 needs the second message first, so it receives the first one before.
TEST(Communication, MessagesBetweenTwoRanksStayInOrder) {
  const Schedule schedule = Schedule::parse("0F0 0F1 0B1 0B0\n1F1 1F0 1B0 1B1");
  const Schedule complete = with_communication(schedule, {std::nullopt, false});
  EXPECT_EQ(complete.str(),
            "0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0RECV_B1 0B1 0B0\n"
            "1RECV_F0 1RECV_F1 1F1 1F0 1B0 1SEND_B0 1B1 1SEND_B1\n");
  EXPECT_TRUE(check(complete).in_order);
  EXPECT_FALSE(check(Schedule::parse("0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B1 0B1 0RECV_B0 0B0\n"
                                     "1RECV_F1 1F1 1RECV_F0 1F0 1B0 1SEND_B0 1B1 1SEND_B1"))
                   .in_order);
  EXPECT_TRUE(rc::check([] {
    std::mt19937_64 random(*rc::gen::arbitrary<std::uint64_t>());
    RC_ASSERT(check(with_communication(some_schedule(random))).in_order);
  }));
}

// With rendezvous sends, receives right before their use deadlock with several chunks. The `rendezvous` order never
// deadlocks. It causes no waiting either, as long as actions take the assumed time.
TEST(Communication, RendezvousNeverDeadlocks) {
  EXPECT_NE(check(with_communication(make_schedule("interleaved", 2, 4))).batched, "");
  EXPECT_TRUE(rc::check([] {
    std::mt19937_64 random(*rc::gen::arbitrary<std::uint64_t>());
    for (int i = 0; i < 20; ++i) {
      const Schedule schedule = some_schedule(random);
      const Schedule complete = with_communication(schedule, {.rendezvous = true});
      RC_ASSERT(only_computation(complete) == schedule);
      const Schedule::Report report = check(complete);
      RC_ASSERT(report.rendezvous == "");
      RC_ASSERT(report.batched == "");
      RC_ASSERT(report.in_order);
      RC_ASSERT(simulate(complete).makespan == simulate(schedule).makespan);
    }
  }));
}

struct Unsharded {
  int gathers = 0, most = 0;
  bool tight = true;  // UNSHARD right before a use, RESHARD right after one, except for messages.
};

Unsharded unsharded(const std::vector<Action>& actions) {
  Unsharded result;
  std::set<int> now;
  std::vector<Action> rest = actions;
  std::erase_if(rest, [](const Action& a) { return is_communication(a.kind); });
  for (std::size_t i = 0; i < rest.size(); ++i) {
    if (rest[i].kind == Action::Kind::unshard) {
      ++result.gathers;
      now.insert(rest[i].stage);
      result.tight &= is_compute(rest[i + 1].kind) && rest[i + 1].stage == rest[i].stage;
    } else if (rest[i].kind == Action::Kind::reshard) {
      now.erase(rest[i].stage);
      result.tight &= is_compute(rest[i - 1].kind) && rest[i - 1].stage == rest[i].stage;
    }
    result.most = std::max(result.most, static_cast<int>(now.size()));
  }
  return result;
}

// The minimum number of gathers with at most `most` unsharded stages, by exhaustive search over the stages to free.
int fewest_gathers(const std::vector<Action>& uses, int most) {
  std::map<std::set<int>, int> states = {{{}, 0}};
  for (const Action& use : uses) {
    std::map<std::set<int>, int> next;
    const auto reach = [&](const std::set<int>& state, int gathers) {
      const auto [entry, fresh] = next.try_emplace(state, gathers);
      if (!fresh) entry->second = std::min(entry->second, gathers);
    };
    for (const auto& [state, gathers] : states) {
      std::set<int> with = state;
      with.insert(use.stage);
      if (static_cast<int>(with.size()) <= most) reach(with, gathers + (state.count(use.stage) == 0));
      if (static_cast<int>(with.size()) <= most) continue;
      for (const int freed : state) {
        std::set<int> without = with;
        without.erase(freed);
        reach(without, gathers + 1);
      }
    }
    states = next;
  }
  int fewest = uses.empty() ? 0 : 1 << 30;
  for (const auto& [state, gathers] : states) fewest = std::min(fewest, gathers);
  return fewest;
}

TEST(Communication, NumberOfGathersIsMinimal) {
  EXPECT_TRUE(rc::check([] {
    std::mt19937_64 random(*rc::gen::arbitrary<std::uint64_t>());
    const Schedule schedule = some_schedule(random);
    const int space = 1 + static_cast<int>(random() % 4);
    const Schedule complete = with_communication(schedule, {.unsharded_stages = space});
    for (std::size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
      const Unsharded got = unsharded(complete.ranks[rank]);
      RC_ASSERT(got.most <= space);
      RC_ASSERT(got.tight);
      RC_ASSERT(got.gathers == fewest_gathers(schedule.ranks[rank], space));
    }
  }));
}

TEST(Communication, GradientsAreReducedOnceAfterTheLastBackward) {
  EXPECT_TRUE(rc::check([] {
    std::mt19937_64 random(*rc::gen::arbitrary<std::uint64_t>());
    const Schedule schedule = some_schedule(random);
    const Schedule complete = with_communication(schedule);
    std::map<int, int> reduced;
    for (const auto& actions : complete.ranks) {
      for (std::size_t i = 0; i < actions.size(); ++i) {
        if (actions[i].kind != Action::Kind::reduce_grad) continue;
        ++reduced[actions[i].stage];
        const auto gradient = [&](const Action& a) {
          return a.stage == actions[i].stage &&
                 (a.kind == Action::Kind::backward || a.kind == Action::Kind::backward_weight);
        };
        RC_ASSERT(std::none_of(actions.begin() + static_cast<std::ptrdiff_t>(i), actions.end(), gradient));
        std::size_t before = i - 1;
        while (!is_compute(actions[before].kind)) --before;
        RC_ASSERT(gradient(actions[before]));
      }
    }
    RC_ASSERT(static_cast<int>(reduced.size()) == schedule.stages());
    for (const auto& [stage, count] : reduced) RC_ASSERT(count == 1);
    RC_ASSERT(!with_communication(schedule, {.reduce_grad = false}).has(Action::Kind::reduce_grad));
    RC_ASSERT(!with_communication(schedule, {.unsharded_stages = std::nullopt}).has(Action::Kind::unshard));
  }));
}

TEST(Communication, IsNotAddedTwiceNorToInvalidSchedules) {
  const Schedule schedule = make_schedule("1f1b", 2, 2);
  const auto error = [](const Schedule& s, const CommunicationOptions& options = {}) {
    return error_of([&] { with_communication(s, options); });
  };
  EXPECT_NE(error(with_communication(schedule)).find("it communicates already: 0UNSHARD (rank 0, action 0)"),
            std::string::npos);
  EXPECT_NE(error(Schedule::parse("0F0 0B0\n1B0 1F0")).find("1B0 (rank 1, action 0) waits for 1F0"), std::string::npos);
  const Schedule shards = Schedule::parse("0UNSHARD 0F0 0B0 0RESHARD\n1F0 1B0");
  EXPECT_NE(error(shards).find("it communicates already: 0UNSHARD"), std::string::npos);
  EXPECT_EQ(with_communication(shards, {.unsharded_stages = std::nullopt, .reduce_grad = false}),
            Schedule::parse("0UNSHARD 0F0 0SEND_F0 0RECV_B0 0B0 0RESHARD\n1RECV_F0 1F0 1B0 1SEND_B0"));
  EXPECT_NE(error(schedule, {.unsharded_stages = 0}).find("expected unsharded_stages >= 1, got 0"), std::string::npos);
}

}  // namespace
}  // namespace dtensor::pipeline
