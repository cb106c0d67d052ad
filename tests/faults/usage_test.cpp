// What no campaign can be is told in a line, with status 2.
#include <gtest/gtest.h>

#include "faults/program.h"
#include "support/captured.h"

namespace dtensor::test {
namespace {

using Words = std::vector<std::string>;

TEST(FaultsUsage, MistakesEndWithStatusTwo) {
  for (const Words& words : std::vector<Words>{{"--trials", "-1"},
                                               {"--trials", "0"},
                                               {"--ranks", "0"},
                                               {"--ranks", "17"},
                                               {"--over", "nonsense"},
                                               {"--keep", "-1"},
                                               {"--rows", "0"},
                                               {"--nonsense", "1"}}) {
    const auto ended = captured({"faults", "kills", words[0], words[1]}, faults::run_program);
    EXPECT_EQ(ended.status, 2) << words[0] << ": " << ended.error;
    EXPECT_NE(ended.error.find(words[0]), std::string::npos) << ended.error;
  }
  EXPECT_EQ(captured({"faults"}, faults::run_program).status, 2);
  EXPECT_EQ(captured({"faults", "--help"}, faults::run_program).status, 0);
}

TEST(FaultsUsage, WhatCannotBeRunIsALineAndStatusOne) {
  const auto ended = captured({"faults", "corruptions", "/proc/no_such_folder", "--trials", "1"}, faults::run_program);
  EXPECT_EQ(ended.status, 1);
  EXPECT_TRUE(ended.error.starts_with("faults: ")) << ended.error;
}

}  // namespace
}  // namespace dtensor::test
