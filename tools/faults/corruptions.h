// Checkpoints with one damaged part: every class of bytes, and files that are truncated, extended, missing or of
// another checkpoint.
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace dtensor::faults {

struct CorruptionOptions {
  std::string folder;  // Its content is removed.
  int trials = 100;
  std::uint64_t seed = 0;
};

struct CorruptionCount {
  int found = 0;     // Loading failed.
  int harmless = 0;  // Loaded with correct values.
  int silent = 0;    // Loaded with wrong values.
};

struct CorruptionReport {
  std::map<std::string, CorruptionCount> by_class = {};
  std::string first_problem = {};  // Of a silent damage.
};

CorruptionReport run_corruptions(const CorruptionOptions& options);

}  // namespace dtensor::faults
