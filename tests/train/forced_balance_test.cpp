// Experts that are assigned in turn, in microbatches whose tokens are not a multiple of the number of experts.
#include <gtest/gtest.h>

#include "support/captured.h"
#include "support/data.h"
#include "train/program.h"

namespace {

using Words = std::vector<std::string>;

// Each microbatch starts with the first expert. The run on one device must use the same microbatches.
TEST(ForcedBalance, SingleDeviceUsesTheSameMicrobatches) {
  for (const Words& pieces : std::vector<Words>{{"--grad-accum", "3"}, {"--mesh", "pp=2", "--microbatches", "3"}}) {
    Words words = {"moe",
                   "--balance",
                   "forced",
                   "--batch",
                   "8",
                   "--seq",
                   "7",
                   "--steps",
                   "3",
                   "--hidden",
                   "16",
                   "--data",
                   dtensor::test::data_path("oracles/transformer.json"),
                   "--dtype",
                   "float64",
                   "--compare"};
    words.insert(words.end(), pieces.begin(), pieces.end());
    const auto run = [](int argc, char** argv) { return train::run_program(train::Kind::experts, argc, argv); };
    const auto ended = dtensor::test::run_captured(words, run);
    EXPECT_EQ(ended.status, 0) << pieces[0] << ended.error;
    EXPECT_NE(ended.out.find("the curves coincide"), std::string::npos) << pieces[0] << ": " << ended.out;
  }
}

}  // namespace
