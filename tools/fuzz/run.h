// Many draws: plain ATen first, in child processes of its own; what crashes there is left out.
#pragma once

#include <map>

#include "fuzz/check.h"

namespace dtensor::fuzz {

// Leaves the calls that one device takes. In child processes.
void keep_valid(CallSource& source);

struct Report {
  std::map<std::string, int> counts;  // by how they ended
  std::vector<std::string> wrong;     // one text per draw
  std::vector<std::string> refused;   // what one device takes and all ranks refuse
};
constexpr int kBlock = 500;  // draws whose endings lie in shared memory together
using DrawAt = std::function<Draw(int)>;
Report run_draws(const DrawAt& draw_at, int first, int count);

}  // namespace dtensor::fuzz
