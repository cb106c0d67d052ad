// A checkpoint with a part of it damaged: every class of bytes, and files that are cut, grown, gone or another's.
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace dtensor::faults {

struct CorruptionOptions {
  std::string folder;  // emptied
  int trials = 100;
  std::uint64_t seed = 0;
};

struct CorruptionCount {
  int found = 0;     // an error
  int harmless = 0;  // loaded, and every value is what was saved
  int silent = 0;    // loaded, and something is not
};

struct CorruptionReport {
  std::map<std::string, CorruptionCount> by_class = {};
  std::string first_problem = {};  // a silent one
};

CorruptionReport run_corruptions(const CorruptionOptions& options);

}  // namespace dtensor::faults
