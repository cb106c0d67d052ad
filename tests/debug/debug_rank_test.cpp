// A rank that waits for a debugger while another rank fails.
#include "dtensor/debug.h"

#include <gtest/gtest.h>

#include <stdexcept>

namespace dtensor::test {
namespace {

TEST(DebugRank, WaitingRankEndsWithTheRun) {
  const auto fails = [](Communicator world) {
    if (world.rank() == 1) throw std::runtime_error("the disk is full");
    EXPECT_THROW(debug_rank(world, 0), CommError);
  };
  EXPECT_THROW(run_local(2, fails), std::runtime_error);
}

}  // namespace
}  // namespace dtensor::test
