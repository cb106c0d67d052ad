// The parts of a training step.
#pragma once

#include <cstdint>

namespace dtensor {

// Of a training step.
enum class Phase : std::uint8_t { forward, backward };

}  // namespace dtensor
