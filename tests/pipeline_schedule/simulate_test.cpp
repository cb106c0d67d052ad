// Times of a schedule's actions, compared with a reference simulator, and the plot of them.
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include "internal/action_kinds.h"
#include "pipeline_schedule/reference.h"

namespace dtensor::pipeline {
namespace {

using reference::error_of;
using reference::random_schedule;

std::function<double(const Action&)> random_costs(std::mt19937_64& random) {
  const auto some = [&] { return static_cast<double>(random() % 8) / 4; };
  Costs costs{some(), some(), some(), some(), some(), some(), some(), some(), {}};
  for (int stage = 0; stage < 8; ++stage) costs.stages.push_back(some());
  return costs;
}

// 10,000 schedules: printed, parsed, checked and simulated.
TEST(Simulate, RandomSchedulesMatchTheReferenceTimes) {
  EXPECT_TRUE(rc::check([] {
    std::mt19937_64 random(*rc::gen::arbitrary<std::uint64_t>());
    for (int i = 0; i < 100; ++i) {
      Schedule schedule = random_schedule(random, 4, 5, 4);
      if (random() % 2 == 0) schedule = with_communication(schedule);
      RC_ASSERT(Schedule::parse(schedule.str()) == schedule);
      check(schedule);
      const std::function<double(const Action&)> cost = random_costs(random);
      const Timeline timeline = simulate(schedule, cost);
      const auto expected = reference::ends(schedule, cost);
      double makespan = 0, computed = 0;
      for (std::size_t rank = 0; rank < expected.size(); ++rank) {
        for (std::size_t at = 0; at < expected[rank].size(); ++at) {
          const TimedAction& timed = timeline.ranks[rank][at];
          RC_ASSERT(timed.action == schedule.ranks[rank][at]);
          RC_ASSERT(timed.end == expected[rank][at]);
          RC_ASSERT(timed.begin <= timed.end);
          makespan = std::max(makespan, timed.end);
          if (is_compute(timed.action.kind)) computed += cost(timed.action);
        }
      }
      RC_ASSERT(timeline.makespan == makespan);
      const double space = makespan * static_cast<double>(expected.size());
      RC_ASSERT(timeline.bubble == (space > 0 ? 1 - computed / space : 0));
    }
  }));
}

TEST(Simulate, CriticalPathIsAsLongAsTheStep) {
  EXPECT_TRUE(rc::check([] {
    std::mt19937_64 random(*rc::gen::arbitrary<std::uint64_t>());
    const Schedule schedule = with_communication(random_schedule(random));
    const std::function<double(const Action&)> cost = random_costs(random);
    const Timeline timeline = simulate(schedule, cost);
    double length = 0;
    for (std::size_t i = 0; i < timeline.critical_path.size(); ++i) {
      const Action& action = timeline.critical_path[i];
      // A send takes time until its message is used, but its rank continues at once.
      const bool sends = action.kind == Action::Kind::send_forward || action.kind == Action::Kind::send_backward;
      const bool awaited =
          i + 1 < timeline.critical_path.size() &&
          timeline.critical_path[i + 1].kind ==
              (action.kind == Action::Kind::send_forward ? Action::Kind::recv_forward : Action::Kind::recv_backward) &&
          timeline.critical_path[i + 1].microbatch == action.microbatch &&
          timeline.critical_path[i + 1].stage == action.stage + (action.kind == Action::Kind::send_forward ? 1 : -1);
      if (!sends || awaited) length += cost(action);
    }
    RC_ASSERT(length == timeline.makespan);
  }));
}

TEST(Simulate, KnownSchedulesHaveKnownTimes) {
  const Timeline timeline = simulate(Schedule::parse("0F0 0SEND_F0 0RECV_B0 0B0\n1RECV_F0 1F0 1B0 1SEND_B0"),
                                     Costs{.forward = 1, .backward = 2, .communication = 0.5, .stages = {1, 3}});
  const auto at = [&](std::size_t rank, std::size_t i) {
    return std::pair(timeline.ranks[rank][i].begin, timeline.ranks[rank][i].end);
  };
  EXPECT_EQ(at(0, 0), std::pair(0., 1.));
  EXPECT_EQ(at(0, 1), std::pair(1., 1.));   // A send does not occupy its rank.
  EXPECT_EQ(at(1, 0), std::pair(0., 1.5));  // A receive ends when its message arrives.
  EXPECT_EQ(at(1, 1), std::pair(1.5, 4.5));
  EXPECT_EQ(at(1, 2), std::pair(4.5, 10.5));
  EXPECT_EQ(at(0, 2), std::pair(1., 11.));
  EXPECT_EQ(at(0, 3), std::pair(11., 13.));
  EXPECT_EQ(timeline.makespan, 13);
  EXPECT_DOUBLE_EQ(timeline.bubble, 1 - (1 + 2 + 3 + 6) / 26.);
}

TEST(Simulate, RefusesInvalidSchedulesAndCosts) {
  EXPECT_NE(error_of([] {
              simulate(Schedule::parse("0B0 0F0"));
            }).find("0B0 (rank 0, action 0) waits for 0F0 (rank 0, action 1)"),
            std::string::npos);
  EXPECT_NE(error_of([] {
              simulate(Schedule::parse("0F0 0B0"), Costs{.forward = -1});
            }).find("expected a cost >= 0 of 0F0 (rank 0, action 0), got -1"),
            std::string::npos);
  EXPECT_NE(error_of([] {
              simulate(make_schedule("1f1b", 2, 1), Costs{.stages = {1}});
            }).find("expected costs of all stages, got 1 costs, but there is 1F0"),
            std::string::npos);
}

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t found = 0;
  for (std::size_t at = 0; (at = text.find(part, at)) != text.npos; ++at) ++found;
  return found;
}

TEST(ScheduleSvg, HasABoxForEachActionAndARowForEachRank) {
  const Schedule schedule = with_communication(make_schedule("interleaved", 3, 5));
  const std::string svg = schedule_svg(simulate(schedule).ranks);
  std::size_t actions = 0;
  for (const auto& rank : schedule.ranks) {
    actions += rank.size();
    for (const Action& action : rank) EXPECT_GE(count(svg, "<title>" + to_string(action) + " "), 1u) << action;
  }
  EXPECT_EQ(count(svg, "<rect "), actions + 1);  // The actions and the background.
  EXPECT_EQ(count(svg, ">rank "), 3u);
  EXPECT_EQ(svg.rfind("</svg>\n"), svg.size() - 7);
}

TEST(ScheduleSvg, HasAnAxisAndALegendOfItsKinds) {
  const std::string svg = schedule_svg(simulate(make_schedule("1f1b", 2, 4)).ranks);
  for (const char* text :
       {">F: forward<", ">B: backward<", ">time: ", ">0<", ">10<", "2 ranks, 2 stages; the step takes"}) {
    EXPECT_NE(svg.find(text), std::string::npos) << text << svg;
  }
  EXPECT_EQ(svg.find(">W: "), std::string::npos);
}

// An action from 2 to 3 in a step from 2 to 6 takes a quarter of the width, from the left edge.
TEST(ScheduleSvg, BoxesAreToScaleForAnyStartTime) {
  const std::string svg =
      schedule_svg({{{{Action::Kind::forward, 0, 0}, 2, 3}}, {{{Action::Kind::forward, 1, 0}, 3, 6}}});
  EXPECT_NE(svg.find("<rect x=\"60.00\" y=\"30.0\" width=\"300.00\""), std::string::npos) << svg;
  EXPECT_NE(svg.find("<rect x=\"360.00\" y=\"60.0\" width=\"900.00\""), std::string::npos) << svg;
  EXPECT_EQ(schedule_svg({}).find("<svg "), 0u);
  EXPECT_EQ(schedule_svg({{}, {}}).find("nan"), std::string::npos);
}

}  // namespace
}  // namespace dtensor::pipeline
