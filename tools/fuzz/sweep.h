// Calls every overload that the library supports with tensors of 0 to 6 dimensions; other arguments follow the schema.
#pragma once

#include "fuzz/check.h"

namespace dtensor::fuzz {

// Overloads whose arguments can be created: all tensors with each number of dimensions, then each tensor with a number
// that differs from the others.
std::vector<RegularCall> sweep_calls();

// Draw i < calls.size() is one of the calls on two ranks, each once. The order is such that any few hundred consecutive
// calls include all kinds. Afterwards a regular product must be correct.
Draw sweep_draw(const std::vector<RegularCall>& calls, std::uint64_t seed, std::size_t i);

}  // namespace dtensor::fuzz
