// Invalid arguments end the program with a one-line message and status 2.
#include <gtest/gtest.h>

#include "aten_cases/program.h"
#include "support/captured.h"

namespace dtensor::test {
namespace {

using Words = std::vector<std::string>;

TEST(AtenCasesUsage, InvalidArgumentsExitWithStatusTwo) {
  for (const Words& words : std::vector<Words>{{"--data", "/no/such/folder"},
                                               {"--every", "0"},
                                               {"--ranks", "0"},
                                               {"--seconds", "-1"},
                                               {"--id", "x"},
                                               {"--op", "no_such_operator"},
                                               {"--nonsense", "1"}}) {
    expect_rejected({"aten_cases", words[0], words[1]}, words[0] == "--data" ? words[1] : words[0], cases::run_program);
  }
}

}  // namespace
}  // namespace dtensor::test
