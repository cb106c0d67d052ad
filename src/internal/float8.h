// Rounding to float8 formats with scales of powers of two, for linear layers and experts.
#pragma once

#include <ATen/core/Tensor.h>

#include "dtensor/export.h"

namespace dtensor::nn {

inline constexpr auto kFloat8Operand = at::kFloat8_e4m3fn, kFloat8Gradient = at::kFloat8_e5m2;
inline constexpr std::int64_t kFloat8Unit = 16;  // sizes of operands are multiples of it

// Elementwise: the smallest power of two by which this largest magnitude fits the format, in float.
DTENSOR_API at::Tensor float8_scale(const at::Tensor& largest_magnitude, at::ScalarType format);

// t / scale in the format; the scale broadcasts.
DTENSOR_API at::Tensor to_float8(const at::Tensor& t, const at::Tensor& scale, at::ScalarType format);

// a [m, k] times b [n, k] transposed, both in float8 formats with a scale each.
DTENSOR_API at::Tensor float8_product(const at::Tensor& a, const at::Tensor& a_scale, const at::Tensor& b,
                                      const at::Tensor& b_scale, at::ScalarType result);

}  // namespace dtensor::nn
