// Schedule checks: error texts, and that check() refuses exactly the schedules that a simple reference implementation
// refuses.
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <regex>

#include "internal/action_kinds.h"
#include "pipeline_schedule/reference.h"

namespace dtensor::pipeline {
namespace {

using reference::error_of;
using reference::random_schedule;

std::string refusal(const std::string& text, const Schedule::Limits& limits = {}) {
  return error_of([&] { check(Schedule::parse(text), limits); });
}

TEST(ScheduleCheck, RefusalsNameTheTwoActions) {
  const std::pair<const char*, const char*> cases[] = {
      {"0F0 0B0 0B0\n", "the same action twice: 0B0 (rank 0, action 1) and 0B0 (rank 0, action 2)"},
      {"0F0 0B0\n0F1 0B1\n", "stage 0 is on two ranks: 0F0 (rank 0, action 0) and 0F1 (rank 1, action 0)"},
      {"0F0 0B0 0W0\n", "two backwards of one microbatch: 0B0 (rank 0, action 1) and 0W0 (rank 0, action 2)"},
      {"0F0 0B0\n1B0\n", "incomplete: 1F0 of rank 1 is missing, but there is 1B0 (rank 1, action 0)"},
      {"0F0 0B0\n1F0\n", "incomplete: 1B0 of rank 1 is missing, but there is 1F0 (rank 1, action 0)"},
      {"0F0 0I0\n", "incomplete: 0W0 of rank 0 is missing, but there is 0I0 (rank 0, action 1)"},
      {"0F0 0B0\n2F0 2B0\n", "incomplete: 1F0 is on no rank, but there is 2B0 (rank 1, action 1)"},
      {"0F0 0B0 0F2 0B2 0UNSHARD", "incomplete: 0F1 of rank 0 is missing, but there is 0UNSHARD (rank 0, action 4)"},
      {"0F999999 0B0 9F0",
       "9F0 (rank 0, action 2) and 0F999999 (rank 0, action 0) require 10 stages and 1000000 microbatches"},
      {"0B0 0F0\n", "0B0 (rank 0, action 0) waits for 0F0 (rank 0, action 1)"},
      {"0F0 0W0 0I0\n", "0W0 (rank 0, action 1) waits for 0I0 (rank 0, action 2)"},
      {"0F0 0B0 0F1 0B1\n1F1 1B1 1F0 1B0\n",
       "0B0 (rank 0, action 1) waits for 1B0 (rank 1, action 3), on whose rank 1F1 (rank 1, action 0) waits for 0F1 "
       "(rank 0, "
       "action 2)"},
      {"0F0 0SEND_F0 0RECV_B0 0B0\n1F0 1B0 1SEND_B0\n",
       "unmatched: 1RECV_F0 of rank 1 is missing for 0SEND_F0 (rank 0, action 1)"},
      {"0F0 0RECV_B0 0B0\n1RECV_F0 1F0 1B0 1SEND_B0\n",
       "unmatched: 0SEND_F0 of rank 0 is missing for 1RECV_F0 (rank 1, action 0)"},
      {"0F0 0SEND_F0 1RECV_F0 1F0 1B0 0B0",
       "unmatched: 0SEND_F0 (rank 0, action 1) and 1RECV_F0, whose stages are neighbors"},
      {"0F0 0SEND_F0 0B0\n",
       "unmatched: 0SEND_F0 (rank 0, action 1) and 1RECV_F0, whose stages are neighbors on one rank or do not exist"},
      {"0UNSHARD 0F0 0RESHARD 0B0", "weights that are freed: 0B0 (rank 0, action 3) after 0RESHARD (rank 0, action 2)"},
      {"0F0 0UNSHARD 0B0 0RESHARD",
       "before its weights are unsharded: 0F0 (rank 0, action 0) and 0UNSHARD (rank 0, action 1)"},
      {"0UNSHARD 0F0 0UNSHARD 0B0 0RESHARD",
       "already unsharded: 0UNSHARD (rank 0, action 2) after 0UNSHARD (rank 0, action 0)"},
      {"0RESHARD 0F0 0B0", "not unsharded: 0RESHARD (rank 0, action 0) after no 0UNSHARD"},
      {"0UNSHARD 0F0 0B0",
       "never resharded: 0UNSHARD (rank 0, action 0) is followed by no RESHARD, but by 0B0 (rank 0, action 2)"},
      {"0F0 0B0 0REDUCE_GRAD 0F1 0B1",
       "reduces gradients too early: 0REDUCE_GRAD (rank 0, action 2) before 0B1 (rank 0, action 4)"},
      {"0F0 0B0 0REDUCE_GRAD 0REDUCE_GRAD",
       "reduces gradients twice: 0REDUCE_GRAD (rank 0, action 2) and 0REDUCE_GRAD (rank 0, action 3)"},
      {"0F0 1F0 1B0 1REDUCE_GRAD 0B0", "never reduced: 0REDUCE_GRAD is missing after 0B0 (rank 0, action 4)"},
  };
  for (const auto& [text, expected] : cases) {
    const std::string error = refusal(text);
    EXPECT_NE(error.find(expected), std::string::npos)
        << text << "\n  got:      " << error << "\n  expected: " << expected;
  }
  EXPECT_NE(refusal("").find("nothing is computed"), std::string::npos);
  EXPECT_NE(refusal("-\n-\n").find("nothing is computed"), std::string::npos);
}

TEST(ScheduleCheck, CycleOfWaitingRanksIsReported) {
  const std::string error = refusal("0F0 0F1 0B1 0B0\n1F0 1B0 1F1 1B1\n2F1 2F0 2B0 2B1\n");
  EXPECT_NE(error.find("the order cannot be kept: "), std::string::npos) << error;
  EXPECT_NE(
      error.find("1B0 (rank 1, action 1) waits for 2B0 (rank 2, action 2), on whose rank 2F1 (rank 2, action 0) waits "
                 "for 1F1 (rank 1, action 2)"),
      std::string::npos)
      << error;
}

TEST(ScheduleCheck, SizesAndMemoryAreBounded) {
  const std::string gpipe = make_schedule("gpipe", 2, 3).str();
  EXPECT_EQ(refusal(gpipe, {2, 3, 3}), "");
  EXPECT_NE(refusal(gpipe, {3}).find("expected 3 stages, got 2"), std::string::npos);
  EXPECT_NE(refusal(gpipe, {2, 4}).find("expected 4 microbatches, got 3"), std::string::npos);
  const std::string error = refusal(gpipe, {.live_microbatches = 2});
  EXPECT_NE(
      error.find(
          "0F2 (rank 0, action 2) would be activations number 3 of its stage; the oldest are those of 0F0 (rank 0, "
          "action 0), the limit is 2"),
      std::string::npos)
      << error;
  EXPECT_EQ(refusal(make_schedule("1f1b", 2, 30).str(), {.live_microbatches = 2}), "");
  EXPECT_EQ(refusal(make_schedule("zb-h1", 4, 30).str(), {.live_microbatches = 4}), "");
  EXPECT_NE(refusal(make_schedule("zb-h1", 4, 30).str(), {.live_microbatches = 3}), "");
}

TEST(ScheduleCheck, EvaluationHasNoGradients) {
  EXPECT_EQ(refusal("0F0 0F1\n1F0 1F1", {.forward_only = true}), "");
  EXPECT_NE(refusal("0F0 0F1\n1F0 1F1").find("0B0 of rank 0 is missing"), std::string::npos);
  EXPECT_NE(refusal("0F0 0B0", {.forward_only = true})
                .find("gradients in a forward-only schedule: 0F0 (rank 0, action 0) and 0B0"),
            std::string::npos);
  EXPECT_NE(
      refusal("0F0 0REDUCE_GRAD", {.forward_only = true}).find("gradients in a forward-only schedule: 0REDUCE_GRAD"),
      std::string::npos);
  EXPECT_NE(refusal("0F0 0SEND_F0\n1RECV_F0 1F0 1SEND_B0", {.forward_only = true}).find("unmatched: 1SEND_B0"),
            std::string::npos);
}

// A common mistake: both ranks send to each other first. This deadlocks with rendezvous, and runs with started or
// buffered sends.
TEST(ScheduleCheck, ReportsWhichSendsAScheduleNeeds) {
  const Schedule::Report one = check(with_communication(make_schedule("1f1b", 2, 3), {std::nullopt, false}));
  EXPECT_EQ(one.batched, "");
  EXPECT_EQ(
      one.rendezvous,
      "0SEND_F1 (rank 0, action 3) waits for 1RECV_F1 (rank 1, action 4), on whose rank 1SEND_B0 (rank 1, action 3) "
      "waits for 0RECV_B0 (rank 0, action 4)");
  EXPECT_EQ(one.live_activations, (std::vector<int>{2, 1}));
  const Schedule::Report gpipe = check(with_communication(make_schedule("gpipe", 3, 4)));
  EXPECT_EQ(gpipe.batched, "");
  EXPECT_EQ(gpipe.rendezvous, "");
  // With an even number of batches, computation in between avoids simultaneous sends.
  const Schedule::Report looped = check(with_communication(make_schedule("interleaved", 2, 4), {std::nullopt, false}));
  EXPECT_EQ(
      looped.batched,
      "2SEND_B0 (rank 0, action 14) waits for 1RECV_B0 (rank 1, action 17), on whose rank 3SEND_B1 (rank 1, action "
      "13) waits for 2RECV_B1 (rank 0, action 17)");
}

TEST(ScheduleCheck, ReportsBlockingSendsLikeTheReference) {
  std::map<std::pair<bool, bool>, int> seen;
  EXPECT_TRUE(rc::check([&] {
    std::mt19937_64 random(*rc::gen::arbitrary<std::uint64_t>());
    for (int i = 0; i < 20; ++i) {
      const Schedule computation = random() % 4 != 0
                                       ? random_schedule(random, 3, 4, 3)
                                       : make_schedule(schedule_names()[random() % schedule_names().size()], 2, 3);
      const CommunicationOptions options{.unsharded_stages = random() % 2 == 0 ? std::optional(1) : std::nullopt,
                                         .rendezvous = random() % 4 == 0};
      const Schedule schedule = with_communication(computation, options);
      const Schedule::Report report = check(schedule);
      const bool batched = reference::runs_with_rendezvous_sends(schedule, true),
                 rendezvous = reference::runs_with_rendezvous_sends(schedule, false);
      RC_LOG() << schedule.str() << report.batched << "\n" << report.rendezvous;
      RC_ASSERT(report.batched.empty() == batched);
      RC_ASSERT(report.rendezvous.empty() == rendezvous);
      ++seen[{batched, rendezvous}];
    }
  }));
  for (const auto& expected : {std::pair(true, true), std::pair(true, false), std::pair(false, false)}) {
    EXPECT_GE(seen[expected], 50) << expected.first << expected.second;
  }
}

enum class Mutation { drop, duplicate, swap, retarget_stage, retarget_microbatch, rekind, move, add };

void mutate(Schedule& schedule, Mutation mutation, std::mt19937_64& random) {
  const auto below = [&](std::size_t n) { return random() % n; };
  const auto rank = below(schedule.ranks.size());
  auto& actions = schedule.ranks[rank];
  if (actions.empty()) return;
  const std::size_t at = below(actions.size()), other = below(actions.size());
  const auto place = [&](std::vector<Action>& list, std::size_t i) {
    return list.begin() + static_cast<std::ptrdiff_t>(i);
  };
  const Action action = actions[at];
  switch (mutation) {
    case Mutation::drop:
      actions.erase(place(actions, at));
      break;
    case Mutation::duplicate:
      actions.insert(place(actions, other), action);
      break;
    case Mutation::swap:
      std::swap(actions[at], actions[other]);
      break;
    case Mutation::retarget_stage:
      actions[at].stage = static_cast<int>(below(static_cast<std::size_t>(schedule.stages()) + 1));
      break;
    case Mutation::retarget_microbatch:
      if (has_microbatch(action.kind))
        actions[at].microbatch = static_cast<int>(below(static_cast<std::size_t>(schedule.microbatches()) + 1));
      break;
    case Mutation::rekind: {
      const auto kind = static_cast<Action::Kind>(below(kActionKinds));
      actions[at].kind = kind;
      actions[at].microbatch = has_microbatch(kind) ? std::max(0, action.microbatch) : -1;
      break;
    }
    case Mutation::move: {
      actions.erase(place(actions, at));
      auto& target = schedule.ranks[below(schedule.ranks.size())];
      target.insert(place(target, below(target.size() + 1)), action);
      break;
    }
    case Mutation::add: {
      const auto kind = static_cast<Action::Kind>(below(kActionKinds));
      actions.insert(place(actions, other),
                     {kind, action.stage, has_microbatch(kind) ? std::max(0, action.microbatch) : -1});
      break;
    }
  }
}

bool mentions_two_actions(const std::string& error) {
  static const std::regex kWord(
      "[0-9]+(F|B|I|W|SEND_F|RECV_F|SEND_B|RECV_B|UNSHARD|RESHARD|REDUCE_GRAD)[0-9]*( |,|$|\n)");
  return std::distance(std::sregex_iterator(error.begin(), error.end(), kWord), std::sregex_iterator()) >= 2;
}

TEST(ScheduleCheck, RefusesExactlyTheMutationsThatAreInvalid) {
  std::map<Mutation, std::pair<int, int>> seen;  // Refused, still valid.
  EXPECT_TRUE(rc::check([&] {
    std::mt19937_64 random(*rc::gen::arbitrary<std::uint64_t>());
    for (int i = 0; i < 100; ++i) {
      Schedule schedule = random() % 4 != 0 ? random_schedule(random, 3, 4, 3)
                                            : make_schedule(schedule_names()[random() % schedule_names().size()], 2, 3);
      if (random() % 3 != 0) schedule = with_communication(schedule);
      RC_ASSERT(reference::is_valid(schedule));
      const auto mutation = static_cast<Mutation>(random() % 8);
      mutate(schedule, mutation, random);
      const std::string error = error_of([&] { check(schedule); });
      RC_LOG() << schedule.str() << error;
      RC_ASSERT(error.empty() == reference::is_valid(schedule));
      const bool emptied = schedule.microbatches() == 0;
      RC_ASSERT(error.empty() || emptied || mentions_two_actions(error));
      (error.empty() ? seen[mutation].second : seen[mutation].first) += 1;
    }
  }));
  ASSERT_EQ(seen.size(), 8u);
  for (const auto& [mutation, counts] : seen) EXPECT_GE(counts.first, 100) << static_cast<int>(mutation);
  EXPECT_GE(seen[Mutation::swap].second, 20);  // The reference also accepts schedules.
}

}  // namespace
}  // namespace dtensor::pipeline
