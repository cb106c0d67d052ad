// Number of bytes that were read from files.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <fstream>
#include <string>

namespace dtensor::test {

// Bytes that this thread has requested from read() since it started.
inline std::int64_t bytes_read() {
  std::ifstream file("/proc/thread-self/io");
  std::string word;
  std::int64_t bytes = 0;
  file >> word >> bytes;
  EXPECT_EQ(word, "rchar:");
  return bytes;
}

}  // namespace dtensor::test
