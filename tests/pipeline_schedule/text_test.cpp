// Schedules as text: str() and parse() round-trip, PyTorch's tables are parsed, and invalid actions are refused with
// their line.
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include "internal/action_kinds.h"
#include "pipeline_schedule/reference.h"

namespace dtensor::pipeline {
namespace {

using reference::error_of;

TEST(ScheduleText, ActionNamesMatchPyTorch) {
  using K = Action::Kind;
  EXPECT_EQ(to_string({K::forward, 0, 3}), "0F3");
  EXPECT_EQ(to_string({K::backward, 12, 0}), "12B0");
  EXPECT_EQ(to_string({K::backward_input, 1, 2}), "1I2");
  EXPECT_EQ(to_string({K::backward_weight, 1, 2}), "1W2");
  EXPECT_EQ(to_string({K::send_forward, 0, 3}), "0SEND_F3");
  EXPECT_EQ(to_string({K::recv_forward, 1, 3}), "1RECV_F3");
  EXPECT_EQ(to_string({K::send_backward, 1, 3}), "1SEND_B3");
  EXPECT_EQ(to_string({K::recv_backward, 0, 3}), "0RECV_B3");
  EXPECT_EQ(to_string({K::unshard, 2}), "2UNSHARD");
  EXPECT_EQ(to_string({K::reshard, 2}), "2RESHARD");
  EXPECT_EQ(to_string({K::reduce_grad, 2}), "2REDUCE_GRAD");
}

TEST(ScheduleText, AnyActionsRoundTrip) {
  EXPECT_TRUE(rc::check([] {
    Schedule schedule;
    schedule.ranks.resize(*rc::gen::inRange<std::size_t>(0, 5));
    for (auto& actions : schedule.ranks) {
      actions.resize(*rc::gen::inRange<std::size_t>(0, 12));
      for (Action& action : actions) {
        action.kind = static_cast<Action::Kind>(*rc::gen::inRange(0, kActionKinds));
        action.stage = *rc::gen::inRange(0, 1'000'000);
        action.microbatch = has_microbatch(action.kind) ? *rc::gen::inRange(0, 1'000'000) : -1;
      }
    }
    RC_ASSERT(Schedule::parse(schedule.str()) == schedule);
  }));
}

TEST(ScheduleText, CommasBlanksAndCommentsSeparate) {
  const Schedule expected = Schedule::parse("0F0 0B0\n1F0 1B0\n");
  EXPECT_EQ(Schedule::parse("# one microbatch\r\n0F0,,0B0,\r\n\r\n\t1F0 ,\t1B0 # the last stage"), expected);
  EXPECT_EQ(Schedule::parse("0F0 0B0\n  # rank 1\n1F0 1B0\n,,,\n"), expected);
  EXPECT_EQ(Schedule::parse("-\n0F0\n-").ranks.size(), 3u);
  EXPECT_EQ(Schedule::parse("").ranks.size(), 0u);
}

TEST(ScheduleText, InvalidActionIsRefusedWithItsLine) {
  for (const char* word : {"F0", "0X0", "0F", "0f0", "0F0x", "0F-1", "-1F0", "0UNSHARD0", "0SEND_F", "0 F0",
                           "1234567F0", "0F99999999999999999999", "- 0F0", "0F0;", "(0F0;1B0)OVERLAP_F_B", "\xff"}) {
    const std::string text = std::string("0F0\n# comment\n0B0 ") + word + "\n";
    const std::string error = error_of([&] { Schedule::parse(text); });
    EXPECT_NE(error.find("line 3"), std::string::npos) << word << ": " << error;
    EXPECT_NE(error.find("is no action; expected a stage, one of F, B, I, W, SEND_F"), std::string::npos) << error;
  }
  EXPECT_NE(error_of([] { Schedule::parse("0F0 0Q1"); }).find("line 1: \"0Q1\""), std::string::npos);
}

TEST(ScheduleText, SizesFollowFromTheActions) {
  const Schedule schedule = Schedule::parse("0F0 0F1 3F0\n1F0 2UNSHARD");
  EXPECT_EQ(schedule.stages(), 4);
  EXPECT_EQ(schedule.microbatches(), 2);
  EXPECT_EQ(schedule.rank_of(3), 0);
  EXPECT_EQ(schedule.rank_of(2), 1);
  EXPECT_NE(error_of([&] { static_cast<void>(schedule.rank_of(4)); }).find("no rank has stage 4 of 4"),
            std::string::npos);
  EXPECT_TRUE(schedule.has(Action::Kind::unshard));
  EXPECT_FALSE(schedule.has(Action::Kind::reshard));
}

}  // namespace
}  // namespace dtensor::pipeline
