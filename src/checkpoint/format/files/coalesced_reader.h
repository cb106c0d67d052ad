// Reads many short ranges of a file as few long ones: what lies between wanted ranges is cheaper to read than to skip.
#pragma once

#include <vector>

#include "checkpoint/format/files/file.h"

namespace dtensor::files {

class CoalescedReader {
 public:
  explicit CoalescedReader(const File& file) : file_(file) {}
  // `to` is filled at the latest by flush().
  void request(std::int64_t offset, std::int64_t bytes, char* to);
  void flush();

 private:
  struct Range {
    std::int64_t offset, bytes;
    char* to;
  };
  const File& file_;
  std::vector<Range> ranges_;  // ascending, without overlap
  std::vector<char> window_;
};

}  // namespace dtensor::files
