// The block size of the current BitIdentical scope, and refusal of what has no bit-identical form.
#pragma once

#include <cstdint>

#include "dtensor/bit_identical.h"

namespace dtensor {

// Block size of products; 0 outside a scope.
std::int64_t bit_identical_block();

inline bool is_bit_identical() { return BitIdentical::current(); }

// Throws in a BitIdentical scope: `what` has no form whose bits are independent of the mesh.
void refuse_if_bit_identical(const char* what);

}  // namespace dtensor
