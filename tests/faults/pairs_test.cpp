// Ranks that call different collectives: every pair ends on every rank immediately, with both calls in the message.
#include <gtest/gtest.h>

#include <chrono>

#include "faults/calls.h"
#include "faults/errors.h"

namespace dtensor::test {
namespace {

TEST(Pairs, EachCallSucceedsAlone) {
  for (const auto& call : comm_calls()) {
    for (const auto& text : errors_of(3, [&](Communicator world) { call.run(world); }))
      EXPECT_EQ(text, "") << call.name;
  }
}

TEST(Pairs, EveryMismatchIsReportedBeforeTheTimeout) {
  const auto calls = comm_calls();
  for (const auto& usual : calls) {
    for (const auto& astray : calls) {
      if (usual.name == astray.name) continue;
      for (const int ranks : {2, 3}) {
        const auto errors = errors_of(
            ranks,
            [&](Communicator world) {
              (world.rank() == 1 ? astray : usual).run(world);
              world.barrier();
            },
            std::chrono::seconds(60));
        const auto what = usual.name + " against " + astray.name;
        for (const auto& text : errors) {
          EXPECT_TRUE(contains(text, "ranks disagree") || contains(text, "ranks wait for each other")) << what << text;
          EXPECT_TRUE(contains(text, usual.says)) << what << ": " << text;
          EXPECT_TRUE(contains(text, astray.says)) << what << ": " << text;
          EXPECT_TRUE(contains(text, "last of rank ")) << what << ": " << text;
        }
      }
    }
  }
}

}  // namespace
}  // namespace dtensor::test
