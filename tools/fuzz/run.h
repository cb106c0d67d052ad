// Many draws: first on regular tensors, in separate child processes; calls that crash there are skipped.
#pragma once

#include <map>

#include "fuzz/check.h"

namespace dtensor::fuzz {

// Keeps only calls that one device accepts. Runs in child processes.
void keep_valid(CallSource& source);

struct Report {
  std::map<std::string, int> counts;  // By result.
  std::vector<std::string> wrong;     // One text for each failed draw.
  std::vector<std::string> refused;   // Calls that one device accepts and all ranks refuse.
};
constexpr int kBlock = 500;  // Draws per block of shared memory.
using DrawAt = std::function<Draw(int)>;
Report run_draws(const DrawAt& draw_at, int first, int count);

}  // namespace dtensor::fuzz
