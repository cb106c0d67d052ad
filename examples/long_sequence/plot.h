// Costs against the length of the sequence, drawn.
#pragma once

#include <string>
#include <vector>

#include "cost.h"

namespace long_sequence {

struct Line {
  int ranks;
  std::vector<Cost> costs;  // one for each length
};

// Memory at the left, processor time at the right, a line for each number of ranks.
std::string costs_svg(const std::vector<std::int64_t>& tokens, const std::vector<Line>& lines);

}  // namespace long_sequence
