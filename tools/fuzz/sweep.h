// Every overload that the engine knows, given tensors of 0 to 6 dimensions: arguments by what its schema says.
#pragma once

#include "fuzz/check.h"

namespace dtensor::fuzz {

// Overloads with arguments that can be made: all tensors of each number of dimensions, then each tensor alone of
// another number than the others.
std::vector<PlainCall> sweep_calls();

// Of each such call on two ranks; afterwards a plain product must be right.
Draw sweep_draw(const PlainCall& call, std::uint64_t seed);

}  // namespace dtensor::fuzz
