// Programs that are called as functions, with what they print.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace dtensor::test {

struct Captured {
  int status;
  std::string out, error;
};

// `main(argc, argv)` with `words`, of which the first is the program's name.
template <class Main>
Captured captured(std::vector<std::string> words, const Main& main) {
  std::vector<char*> argv;
  for (auto& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  const int status = main(static_cast<int>(words.size()), argv.data());
  auto error = testing::internal::GetCapturedStderr();
  return {status, testing::internal::GetCapturedStdout(), std::move(error)};
}

}  // namespace dtensor::test
