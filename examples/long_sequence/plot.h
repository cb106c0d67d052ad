// Plots costs against the sequence length.
#pragma once

#include <string>
#include <vector>

#include "cost.h"

namespace long_sequence {

struct Line {
  int ranks;
  std::vector<Cost> costs;  // One for each length.
};

// Memory on the left, CPU time on the right, with a line for each number of ranks.
std::string costs_svg(const std::vector<std::int64_t>& tokens, const std::vector<Line>& lines);

}  // namespace long_sequence
