// Invalid arguments of campaigns end with a one-line message and status 2.
#include <gtest/gtest.h>

#include "faults/program.h"
#include "support/captured.h"

namespace dtensor::test {
namespace {

using Words = std::vector<std::string>;

TEST(FaultsUsage, InvalidArgumentsExitWithStatusTwo) {
  for (const Words& words : std::vector<Words>{{"--trials", "-1"},
                                               {"--trials", "0"},
                                               {"--ranks", "0"},
                                               {"--ranks", "17"},
                                               {"--over", "nonsense"},
                                               {"--keep", "-1"},
                                               {"--rows", "0"},
                                               {"--nonsense", "1"}}) {
    expect_rejected({"faults", "kills", words[0], words[1]}, words[0], faults::run_program);
  }
  EXPECT_EQ(run_captured({"faults"}, faults::run_program).status, 2);
  EXPECT_EQ(run_captured({"faults", "--help"}, faults::run_program).status, 0);
}

TEST(FaultsUsage, UnusableFolderIsAOneLineError) {
  expect_rejected({"faults", "corruptions", "/proc/no_such_folder", "--trials", "1"}, "faults: ", faults::run_program);
}

}  // namespace
}  // namespace dtensor::test
