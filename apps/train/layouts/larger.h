// The maximum of two differences that propagates NaN. std::max may drop NaN, so a diverged run could pass as equal.
#pragma once

#include <cmath>

namespace train {

// NaN if either is NaN.
inline double max_propagate_nan(double a, double b) { return std::isnan(a) || b <= a ? a : b; }

}  // namespace train
