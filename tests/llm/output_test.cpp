// Output that cannot be written is an error.
#include <gtest/gtest.h>

#include "llm/program.h"
#include "recorded.h"

namespace {

TEST(FullDevice, FailsWithOneLineAndStatusOne) {
  std::vector<std::string> words = {"llm",      "logits",   "--model", recorded::folder("llama2"),
                                    "--tokens", "1,2,3",    "--mesh",  "tp=2",
                                    "--out",    "/dev/full"};
  std::vector<char*> argv;
  for (auto& word : words) argv.push_back(word.data());
  testing::internal::CaptureStderr();
  const int status = llm::run_program(static_cast<int>(argv.size()), argv.data());
  const std::string error = testing::internal::GetCapturedStderr();
  EXPECT_EQ(status, 1);
  EXPECT_EQ(error, "rank 0: /dev/full could not be written completely (disk full?)\n");
}

TEST(FullDevice, UnwritablePathIsReportedBeforeLoading) {
  std::vector<std::string> words = {"llm",      "logits", "--model", recorded::folder("llama2"),
                                    "--tokens", "1,2,3",  "--out",   "/no/such/folder/x"};
  std::vector<char*> argv;
  for (auto& word : words) argv.push_back(word.data());
  testing::internal::CaptureStderr();
  const int status = llm::run_program(static_cast<int>(argv.size()), argv.data());
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "llm: --out: cannot write /no/such/folder/x\n");
  EXPECT_EQ(status, 2);
}

}  // namespace
