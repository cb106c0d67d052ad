// Merges reads of many short ranges of a file: reading the gaps is cheaper than additional system calls.
#pragma once

#include <vector>

#include "checkpoint/format/files/file.h"

namespace dtensor::files {

class CoalescedReader {
 public:
  explicit CoalescedReader(const File& file) : file_(file) {}
  // `to` is filled when flush() returns, or earlier.
  void request(std::int64_t offset, std::int64_t bytes, char* to);
  void flush();

 private:
  struct Range {
    std::int64_t offset, bytes;
    char* to;
  };
  const File& file_;
  std::vector<Range> ranges_;  // ascending, not overlapping
  std::vector<char> window_;
};

}  // namespace dtensor::files
