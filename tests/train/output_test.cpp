// A program whose output cannot be written fails: with a full device, each output ends with an error line and status 1.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>

#include "support/data.h"
#include "train/output/output.h"
#include "train/program.h"

namespace {

using train::Kind;
using Words = std::vector<std::string>;

int run(Kind program, const Words& more) {
  Words words = {train::to_string(program), "--hidden", "16", "--layers", "1", "--batch", "4", "--seq", "4"};
  for (const char* word : {"--steps", "2", "--ranks", "2", "--data"}) words.emplace_back(word);
  words.push_back(dtensor::test::data_path("oracles/transformer.json"));
  words.insert(words.end(), more.begin(), more.end());
  std::vector<char*> argv;
  for (auto& word : words) argv.push_back(word.data());
  return train::run_program(program, static_cast<int>(argv.size()), argv.data());
}

struct Output {
  Kind program;
  Words words;
};

TEST(FullDevice, IsReportedForEveryFileOfAProgram) {
  for (const auto& [program, words] : std::vector<Output>{{Kind::dense, {"--log"}},
                                                          {Kind::dense, {"--plot"}},
                                                          {Kind::dense, {"--compare", "--plot"}},
                                                          {Kind::dense, {"--trace"}},
                                                          {Kind::dense, {"--memory-plot"}},
                                                          {Kind::dense, {"--mesh", "pp=2", "--schedule-plot"}},
                                                          {Kind::experts, {"--log"}},
                                                          {Kind::experts, {"--load-plot"}}}) {
    Words all = words;
    all.emplace_back("/dev/full");
    testing::internal::CaptureStdout();
    testing::internal::CaptureStderr();
    const int status = run(program, all);
    const std::string said = testing::internal::GetCapturedStderr();
    testing::internal::GetCapturedStdout();
    EXPECT_EQ(status, 1) << words.back();
    EXPECT_NE(said.find("/dev/full could not be written completely"), std::string::npos)
        << words.back() << ": " << said;
    const bool goes_on = said.find("--log: cannot write /dev/full (disk full?); training continues\n") < said.size();
    EXPECT_EQ(goes_on, words.back() == "--log") << said;
    EXPECT_NE(said.find("step 2/2"), std::string::npos) << words.back() << ": " << said;
  }
}

TEST(FullDevice, IsReportedForStandardOutput) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";  // A fork would lack the pool's threads.
  const auto print = [](const Words& words) {
    if (std::freopen("/dev/full", "w", stdout) == nullptr) std::_Exit(3);
    std::_Exit(run(Kind::dense, words));
  };
  EXPECT_EXIT(print({}), testing::ExitedWithCode(1), "standard output could not be written");
  EXPECT_EXIT(print({"--help"}), testing::ExitedWithCode(1), "standard output could not be written");
}

TEST(FullDevice, IsReportedForOutputLargerThanABuffer) {
  EXPECT_THROW(train::write_file("/dev/full", std::string(1 << 20, 'x')), std::runtime_error);
  EXPECT_THROW(train::write_file("/dev/full", "x"), std::runtime_error);
  EXPECT_THROW(train::write_file("/no/such/folder/x", "x"), std::runtime_error);
}

}  // namespace
