// Programs that are called as functions, with captured output.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace dtensor::test {

struct ProgramOutput {
  int status;
  std::string out, error;
};

// Runs `main(argc, argv)` with `words`, of which the first is the program's name.
template <class Main>
ProgramOutput run_captured(std::vector<std::string> words, const Main& main) {
  std::vector<char*> argv;
  for (auto& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  const int status = main(static_cast<int>(words.size()), argv.data());
  auto error = testing::internal::GetCapturedStderr();
  return {status, testing::internal::GetCapturedStdout(), std::move(error)};
}

// Expects that a program refuses the arguments: status 2, and an error that contains `part`.
template <class Main>
void expect_rejected(const std::vector<std::string>& words, const std::string& part, const Main& main) {
  const ProgramOutput ended = run_captured(words, main);
  EXPECT_EQ(ended.status, 2) << part << ": " << ended.error;
  EXPECT_NE(ended.error.find(part), std::string::npos) << ended.error;
  EXPECT_EQ(ended.out, "") << part;
}

}  // namespace dtensor::test
