// Every overload that the engine knows, given tensors of 0 to 6 dimensions: arguments by what its schema says.
#pragma once

#include "fuzz/check.h"

namespace dtensor::fuzz {

// Overloads with arguments that can be made: all tensors of each number of dimensions, then each tensor alone of
// another number than the others.
std::vector<RegularCall> sweep_calls();

// Draw i < calls.size() is one of them on two ranks, each once, in an order in which any few hundred are of all kinds;
// afterwards a plain product must be right.
Draw sweep_draw(const std::vector<RegularCall>& calls, std::uint64_t seed, std::size_t i);

}  // namespace dtensor::fuzz
