// What memory is used for.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "dtensor/export.h"

namespace dtensor {

// What a block of memory belongs to. Blocks that no module of the library claims are activations.
enum class MemoryKind : std::uint8_t {
  parameter,
  gradient,         // Reduced gradients, and those that wait for their reduction in .grad.
  optimizer_state,  // Also the updates that a step computes.
  gathered,         // Gathered copies of parameters.
  activation,       // Also temporaries of operators and gradients of activations.
  communication,    // Outputs of collectives that are none of the above.
};
// Number of kinds.
inline constexpr std::size_t kMemoryKinds = 6;

// Bytes by kind, indexed by MemoryKind.
using MemoryByKind = std::array<std::int64_t, kMemoryKinds>;

// The name in tables: "optimizer states".
DTENSOR_API const char* to_string(MemoryKind kind);

}  // namespace dtensor
