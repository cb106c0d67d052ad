// The larger of two differences, where one that is no number counts: std::max takes NaN for the smaller one, and what
// has left all bounds would pass as equal.
#pragma once

#include <cmath>

namespace train {

// NaN where either is.
inline double max_propagate_nan(double a, double b) { return std::isnan(a) || b <= a ? a : b; }

}  // namespace train
