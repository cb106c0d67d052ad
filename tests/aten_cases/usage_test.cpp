// What cannot be asked for is told in a line, with status 2.
#include <gtest/gtest.h>

#include "aten_cases/program.h"
#include "support/captured.h"

namespace dtensor::test {
namespace {

using Words = std::vector<std::string>;

TEST(AtenCasesUsage, MistakesEndWithStatusTwo) {
  for (const Words& words : std::vector<Words>{{"--data", "/no/such/folder"},
                                               {"--every", "0"},
                                               {"--ranks", "0"},
                                               {"--seconds", "-1"},
                                               {"--id", "x"},
                                               {"--nonsense", "1"}}) {
    const auto ended = captured({"aten_cases", words[0], words[1]}, cases::run_program);
    EXPECT_EQ(ended.status, 2) << words[0] << ": " << ended.error;
    EXPECT_NE(ended.error.find(words[0] == "--data" ? words[1] : words[0]), std::string::npos) << ended.error;
    EXPECT_EQ(ended.out, "") << words[0];
  }
}

}  // namespace
}  // namespace dtensor::test
