// The named schedules: valid for any number of ranks and microbatches, with the times and memory of their papers. Costs
// are those of the papers: F, I and W take 1, B takes 2. The formulas are repeated here.
#include <gtest/gtest.h>

#include <numeric>

#include "pipeline_schedule/reference.h"

namespace dtensor::pipeline {
namespace {

using reference::error_of;

template <class Visitor>
void for_each_schedule(const Visitor& visit) {
  for (const std::string& name : schedule_names()) {
    for (int ranks = 1; ranks <= 8; ++ranks) {
      for (int microbatches = 1; microbatches <= 13; ++microbatches) {
        for (int chunks = 0; chunks <= 3; ++chunks) {
          const bool v_shaped = name == "zbv" || name == "dualpipev";
          if (v_shaped && chunks % 2 == 1) continue;
          SCOPED_TRACE(name + " " + std::to_string(ranks) + " ranks " + std::to_string(microbatches) +
                       " microbatches " + std::to_string(chunks) + " chunks");
          visit(name, ranks, microbatches, chunks);
        }
      }
    }
  }
}

int most(const std::vector<int>& values) { return *std::max_element(values.begin(), values.end()); }
double makespan(const Schedule& schedule) { return simulate(schedule).makespan; }

TEST(Generated, AreValidForAnyRanksAndMicrobatches) {
  int count = 0;
  for_each_schedule([&](const std::string& name, int ranks, int microbatches, int chunks) {
    const Schedule schedule = make_schedule(name, ranks, microbatches, chunks);
    ASSERT_TRUE(reference::is_valid(schedule));
    ASSERT_EQ(schedule.ranks.size(), static_cast<std::size_t>(ranks));
    const int own = name == "gpipe" || name == "1f1b" || name == "zb-h1" ? 1 : 2;
    ASSERT_NO_THROW(check(schedule, {ranks * (chunks == 0 ? own : chunks), microbatches}));
    const Schedule complete = with_communication(schedule);
    ASSERT_TRUE(reference::is_valid(complete));
    ASSERT_TRUE(check(complete).in_order);
    ++count;
  });
  EXPECT_EQ(count, 8 * 13 * (5 * 4 + 2 * 2));
}

TEST(Generated, StagesFormALoopOrAV) {
  for_each_schedule([](const std::string& name, int ranks, int microbatches, int chunks) {
    const Schedule schedule = make_schedule(name, ranks, microbatches, chunks);
    for (int stage = 0; stage < schedule.stages(); ++stage) {
      const bool v_shaped = name == "zbv" || name == "dualpipev";
      ASSERT_EQ(schedule.rank_of(stage), v_shaped ? std::min(stage, 2 * ranks - 1 - stage) : stage % ranks);
    }
  });
}

TEST(Generated, OrdersOfSmallSchedulesAreKnown) {
  EXPECT_EQ(make_schedule("gpipe", 2, 2).str(), "0F0 0F1 0B0 0B1\n1F0 1F1 1B0 1B1\n");
  EXPECT_EQ(make_schedule("1f1b", 2, 3).str(), "0F0 0F1 0B0 0F2 0B1 0B2\n1F0 1B0 1F1 1B1 1F2 1B2\n");
  EXPECT_EQ(make_schedule("bfs", 2, 2).str(), "0F0 0F1 2F0 2F1 2B0 2B1 0B0 0B1\n1F0 1F1 3F0 3F1 3B0 3B1 1B0 1B1\n");
  EXPECT_EQ(make_schedule("zb-h1", 2, 2).str(), "0F0 0F1 0I0 0W0 0I1 0W1\n1F0 1I0 1F1 1I1 1W0 1W1\n");
  EXPECT_EQ(make_schedule("zbv", 1, 2).str(), "0F0 1F0 1I0 1W0 0F1 0I0 0W0 1F1 1I1 1W1 0I1 0W1\n");
}

// GPipe idles in (R - 1) of its M + R - 1 slots; 1F1B as well, but it stores fewer microbatches.
TEST(Generated, BubbleOfGpipeAndOneForwardOneBackward) {
  for (int ranks = 1; ranks <= 8; ++ranks) {
    for (int microbatches = 1; microbatches <= 13; ++microbatches) {
      const double expected = (ranks - 1.) / (microbatches + ranks - 1.);
      for (const char* name : {"gpipe", "1f1b"}) {
        const Schedule schedule = make_schedule(name, ranks, microbatches);
        const Costs equal{.forward = 1, .backward = 1};
        ASSERT_NEAR(simulate(schedule, equal).bubble, expected, 1e-12) << name;
        ASSERT_DOUBLE_EQ(makespan(schedule), 3. * (microbatches + ranks - 1)) << name;
      }
    }
  }
}

// With V chunks, stages take a V-th of the time, so the bubble is a V-th. Breadth-first and interleaved schedules have
// the same bubble for any number of microbatches from R on.
TEST(Generated, BubbleIsDividedByChunks) {
  for (int ranks = 1; ranks <= 8; ++ranks) {
    for (int microbatches = ranks; microbatches <= 3 * ranks; ++microbatches) {
      for (int chunks = 1; chunks <= 3; ++chunks) {
        for (const char* name : {"bfs", "interleaved"}) {
          const Schedule schedule = make_schedule(name, ranks, microbatches, chunks);
          ASSERT_DOUBLE_EQ(makespan(schedule), 3. * (microbatches * chunks + ranks - 1)) << name;
        }
      }
    }
  }
}

TEST(Generated, ZeroBubbleHasAThirdOfTheBubble) {
  for (int ranks = 1; ranks <= 8; ++ranks) {
    for (int microbatches = ranks; microbatches <= 3 * ranks; ++microbatches) {
      const double time = makespan(make_schedule("zb-h1", ranks, microbatches));
      ASSERT_DOUBLE_EQ(time, 3. * microbatches + ranks - 1) << ranks << " " << microbatches;
      ASSERT_LE(time, makespan(make_schedule("1f1b", ranks, microbatches)) - 2 * (ranks - 1));
    }
  }
}

// Stages are half as large, so the bubble is half of that of ZB-H1: ranks idle only until the first microbatch arrives.
TEST(Generated, VShapesIdleForTheFirstMicrobatchOnly) {
  for (int ranks = 1; ranks <= 8; ++ranks) {
    for (int microbatches = 2 * ranks; microbatches <= 4 * ranks; ++microbatches) {
      for (const char* name : {"zbv", "dualpipev"}) {
        const Timeline timeline = simulate(make_schedule(name, ranks, microbatches));
        ASSERT_DOUBLE_EQ(timeline.makespan, 6. * microbatches + ranks - 1) << name << ranks << " " << microbatches;
        ASSERT_NEAR(timeline.bubble, (ranks - 1) / (6. * microbatches + ranks - 1), 1e-12);
      }
    }
  }
}

// With fewer microbatches the bubble is larger: for ZBV by formula, for both as computed for 4 ranks, and never larger
// than that of breadth-first.
TEST(Generated, VShapesOfFewMicrobatches) {
  const auto excess = [](const char* name, int ranks, int microbatches) {
    return makespan(make_schedule(name, ranks, microbatches)) - (6 * microbatches + ranks - 1);
  };
  for (int ranks = 1; ranks <= 8; ++ranks) {
    for (int microbatches = 1; microbatches < 2 * ranks; ++microbatches) {
      const int few = std::max(3 * (ranks - microbatches), 2 * ranks - 2 - microbatches);
      const int many = std::max(0, 3 * ranks - 1 - 2 * microbatches);
      ASSERT_EQ(excess("zbv", ranks, microbatches), microbatches <= ranks ? few : many) << ranks << " " << microbatches;
      ASSERT_LE(excess("dualpipev", ranks, microbatches), excess("bfs", ranks, microbatches));
    }
  }
  const int of_zbv[] = {9, 6, 3, 2, 1, 0, 0, 0}, of_dualpipev[] = {12, 10, 6, 3, 2, 0, 0, 0};
  for (int microbatches = 1; microbatches <= 8; ++microbatches) {
    EXPECT_EQ(excess("zbv", 4, microbatches), of_zbv[microbatches - 1]) << microbatches;
    EXPECT_EQ(excess("dualpipev", 4, microbatches), of_dualpipev[microbatches - 1]) << microbatches;
  }
}

TEST(Generated, LiveActivationsMatchTheTable) {
  for (int ranks = 1; ranks <= 8; ++ranks) {
    for (int microbatches = 1; microbatches <= 13; ++microbatches) {
      const auto live = [&](const char* name, int chunks = 0) {
        return live_activations(make_schedule(name, ranks, microbatches, chunks));
      };
      const auto gpipe = live("gpipe"), one = live("1f1b"), bfs = live("bfs", 3), zero = live("zb-h1");
      for (int rank = 0; rank < ranks; ++rank) {
        ASSERT_EQ(gpipe[rank], microbatches);
        ASSERT_EQ(bfs[rank], 3 * microbatches);
        ASSERT_EQ(one[rank], std::min(ranks - rank, microbatches));
        ASSERT_EQ(zero[rank], std::min(ranks, microbatches));
        for (int chunks = 2; chunks <= 3 && microbatches % ranks == 0; ++chunks) {
          const int ahead = (chunks - 1) * ranks + 2 * (ranks - 1 - rank);
          ASSERT_EQ(live("interleaved", chunks)[rank], std::min(ahead + 1, chunks * microbatches));
        }
      }
      ASSERT_LE(most(live("zbv")), std::min(2 * ranks, 2 * microbatches));  // Of stages of half size, so equal to 1F1B.
      ASSERT_LE(most(live("dualpipev")), std::min(2 * ranks + 1, 2 * microbatches));
    }
  }
}

TEST(Generated, InvalidArgumentsAreRefused) {
  EXPECT_NE(error_of([] {
              make_schedule("gpip", 2, 2);
            }).find("no pipeline schedule \"gpip\"; there are gpipe, 1f1b, interleaved, bfs, zb-h1, zbv, dualpipev"),
            std::string::npos);
  EXPECT_NE(error_of([] { make_schedule("1f1b", 0, 2); }).find("0 ranks, 2 microbatches"), std::string::npos);
  EXPECT_NE(error_of([] { make_schedule("1f1b", 2, 0); }).find("2 ranks, 0 microbatches"), std::string::npos);
  EXPECT_NE(error_of([] { make_schedule("1f1b", 2, 2, -1); }).find("-1 chunks"), std::string::npos);
  EXPECT_NE(error_of([] { make_schedule("zbv", 2, 2, 3); }).find("zbv: expected 2 chunks per rank (a V), got 3"),
            std::string::npos);
}

TEST(Generated, ForwardPartIsAForwardOnlySchedule) {
  for_each_schedule([](const std::string& name, int ranks, int microbatches, int chunks) {
    const Schedule forward = forward_only(make_schedule(name, ranks, microbatches, chunks));
    ASSERT_NO_THROW(check(forward, {.forward_only = true}));
    const Schedule complete = with_communication(forward);
    ASSERT_NO_THROW(check(complete, {.microbatches = microbatches, .forward_only = true}));
    ASSERT_FALSE(complete.has(Action::Kind::reduce_grad) || complete.has(Action::Kind::recv_backward));
    ASSERT_EQ(most(live_activations(complete)), 0);
  });
}

}  // namespace
}  // namespace dtensor::pipeline
