// Conversions between blocks of halves and float.
#pragma once

#include <c10/util/Half.h>

#include <cstdint>

namespace dtensor {

void to_float(const at::Half* in, float* out, std::int64_t n);
// Rounded to nearest even, as c10 does, NaN kept.
void from_float(const float* in, at::Half* out, std::int64_t n);

}  // namespace dtensor
