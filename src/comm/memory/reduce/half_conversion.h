// Conversions between blocks of halves and float.
#pragma once

#include <c10/util/Half.h>

#include <cstdint>

namespace dtensor {

void to_float(const at::Half* in, float* out, std::int64_t n);
// Rounds to nearest even, like c10; preserves NaN.
void from_float(const float* in, at::Half* out, std::int64_t n);

}  // namespace dtensor
