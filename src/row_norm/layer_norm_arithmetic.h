// The arithmetic of layer norm, and of RMS norm with means of zero, on a row in float, for host and device: the same
// bits on both. Sums over a row have the order of internal/kernels/lanes.h for blocks of kWarps; sums over rows add
// chunks of kRowsOfChunk in ascending order.
#pragma once

#include <cmath>

#include "internal/kernels/host_device.h"

namespace dtensor::row_norm {

inline constexpr int kWarps = 8;
inline constexpr int kRowsOfChunk = 128;

// Square root and quotient, rounded to nearest.
DTENSOR_HD float root(float x) {
#if defined(__CUDA_ARCH__)
  return __fsqrt_rn(x);
#else
  return std::sqrt(x);
#endif
}
DTENSOR_HD float quotient(float a, float b) {
#if defined(__CUDA_ARCH__)
  return __fdiv_rn(a, b);
#else
  return a / b;
#endif
}

DTENSOR_HD float square_of(float x, float mean) { return dist::product(x - mean, x - mean); }

DTENSOR_HD float reciprocal_deviation(float squares, float count, float eps) {
  return quotient(1.0F, root(quotient(squares, count) + eps));
}

DTENSOR_HD float normalized(float x, float mean, float rstd) { return dist::product(x - mean, rstd); }

// Means over the row of the upstream gradient times the weight, and of its product with the normalized row.
struct RowMeans {
  float gradient, along;
};

DTENSOR_HD float input_gradient(float gradient, float xhat, float rstd, const RowMeans& means) {
  return dist::product(rstd, (gradient - means.gradient) - dist::product(xhat, means.along));
}

}  // namespace dtensor::row_norm
