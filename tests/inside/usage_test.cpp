// Invalid arguments end the program with a one-line message and status 2.
#include <gtest/gtest.h>

#include "inside/program.h"
#include "support/captured.h"

namespace {

using Words = std::vector<std::string>;

TEST(InsideUsage, InvalidArgumentsExitWithStatusTwo) {
  for (const Words& words : std::vector<Words>{{"inside", "--steps", "0"},
                                               {"inside", "--loss-scale", "nan"},
                                               {"inside", "--loss-scale", "-1"},
                                               {"inside", "--device", "tpu"},
                                               {"inside", "--ranks", "x"},
                                               {"inside", "--nonsense"}}) {
    dtensor::test::expect_rejected(words, words[1], inside::run_program);
  }
  const auto help = dtensor::test::run_captured({"inside", "--help"}, inside::run_program);
  EXPECT_EQ(help.status, 0);
  EXPECT_NE(help.out.find("--loss-scale"), std::string::npos) << help.out;
  EXPECT_EQ(dtensor::test::run_captured({"inside", "--steps", "1"}, inside::run_program).status, 0);
}

}  // namespace
