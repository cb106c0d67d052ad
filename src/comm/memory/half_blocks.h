// Conversions between blocks of 16-bit floating point numbers and float.
#pragma once

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <cstdint>

namespace dtensor {

void to_float(const at::BFloat16* in, float* out, std::int64_t n);
void to_float(const at::Half* in, float* out, std::int64_t n);
// Rounded to nearest even, as c10 does, NaN kept.
void from_float(const float* in, at::BFloat16* out, std::int64_t n);
void from_float(const float* in, at::Half* out, std::int64_t n);

}  // namespace dtensor
