// Outputs, gradients, counts and biases of the reference layer over five steps, with every applicable dispatcher.
#include "oracle.h"

#include <gtest/gtest.h>

#include "dtensor/dtensor.h"

namespace dtensor::oracle {
namespace {

TEST(MoeOracle, EveryVariantOnEveryNumberOfRanks) {
  for (const int ranks : {1, 2, 4, 8}) {
    EXPECT_NO_THROW(run_local(ranks, [](Communicator world) { check_all_variants(world); })) << ranks << " ranks";
  }
}

}  // namespace
}  // namespace dtensor::oracle
