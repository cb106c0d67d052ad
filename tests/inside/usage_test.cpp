// What cannot be is told in a line, with status 2.
#include <gtest/gtest.h>

#include "inside/program.h"
#include "support/captured.h"

namespace {

using Words = std::vector<std::string>;

TEST(InsideUsage, MistakesEndWithStatusTwo) {
  for (const Words& words : std::vector<Words>{{"inside", "--steps", "0"},
                                               {"inside", "--loss-scale", "nan"},
                                               {"inside", "--loss-scale", "-1"},
                                               {"inside", "--device", "tpu"},
                                               {"inside", "--ranks", "x"},
                                               {"inside", "--nonsense"}}) {
    const auto ended = dtensor::test::captured(words, inside::run_program);
    EXPECT_EQ(ended.status, 2) << words[1] << ": " << ended.error;
    EXPECT_NE(ended.error.find(words[1]), std::string::npos) << ended.error;
  }
  const auto help = dtensor::test::captured({"inside", "--help"}, inside::run_program);
  EXPECT_EQ(help.status, 0);
  EXPECT_NE(help.out.find("--loss-scale"), std::string::npos) << help.out;
  EXPECT_EQ(dtensor::test::captured({"inside", "--steps", "1"}, inside::run_program).status, 0);
}

}  // namespace
