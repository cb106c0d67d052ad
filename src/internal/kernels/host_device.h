// Arithmetic that is equal on CPUs and GPUs. Functions use neither fused operations nor libm, and have no branches, so
// that compilers vectorize them. This header is C++ without ATen.
#pragma once

#include <cmath>
#include <cstdint>

#if defined(__CUDACC__)
#define DTENSOR_HD __host__ __device__ __forceinline__
#else
#define DTENSOR_HD inline
#endif

namespace dtensor::dist {

DTENSOR_HD float mul_add(float a, float b, float c) {
#if defined(__CUDA_ARCH__)
  return __fadd_rn(__fmul_rn(a, b), c);
#else
  return a * b + c;
#endif
}

DTENSOR_HD double mul_add(double a, double b, double c) {
#if defined(__CUDA_ARCH__)
  return __dadd_rn(__dmul_rn(a, b), c);
#else
  return a * b + c;
#endif
}

// A product that is never fused with a sum.
template <class S>
DTENSOR_HD S product(S a, S b) {
#if defined(__CUDA_ARCH__)
  if constexpr (sizeof(S) == sizeof(float)) return __fmul_rn(a, b);
  return __dmul_rn(a, b);
#else
  return a * b;
#endif
}

DTENSOR_HD std::int32_t float_bits(float x) {
#if defined(__CUDA_ARCH__)
  return __float_as_int(x);
#else
  return __builtin_bit_cast(std::int32_t, x);
#endif
}

DTENSOR_HD float float_of_bits(std::int32_t bits) {
#if defined(__CUDA_ARCH__)
  return __int_as_float(bits);
#else
  return __builtin_bit_cast(float, bits);
#endif
}

// e^x for x <= 88 by the polynomial of Cephes (S. L. Moshier, expf.c; relative error below 2e-7). Zero for x < -86.
// NaN gives NaN.
DTENSOR_HD float exp_of(float x) {
  constexpr float kRound = 12582912.0F;  // 1.5 * 2^23: the sum's low bits are the nearest integer
  const float shifted = mul_add(x, 1.44269504088896341F, kRound);
  const float n = shifted - kRound;
  float r = mul_add(n, -0.693359375F, x);
  r = mul_add(n, 2.12194440E-4F, r);
  float p = 1.9875691500E-4F;
  p = mul_add(p, r, 1.3981999507E-3F);
  p = mul_add(p, r, 8.3334519073E-3F);
  p = mul_add(p, r, 4.1665795894E-2F);
  p = mul_add(p, r, 1.6666665459E-1F);
  p = mul_add(p, r, 5.0000001201E-1F);
  const float y = mul_add(p, r * r, r) + 1.0F;
  const std::uint32_t exponent = static_cast<std::uint32_t>(float_bits(shifted)) << 23;  // n, times 2^23
  const float scale = float_of_bits(static_cast<std::int32_t>(exponent + 0x3F800000U));
  const float result = y * scale;
  return x < -86.0F ? 0.0F : result;
}

// Of other types: the standard function.
DTENSOR_HD double exp_of(double x) { return std::exp(x); }

}  // namespace dtensor::dist
