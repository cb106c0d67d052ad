// Logarithm, square root, sine and cosine in float by the polynomials of Cephes (S. L. Moshier, logf.c and sinf.c;
// errors below 1e-7). They have no branches, so that compilers vectorize them. They use neither fused operations nor
// libm, so every CPU and GPU gives the same bits.
#pragma once

#include <cstdint>

#include "internal/kernels/host_device.h"

namespace dtensor::dist {

// Natural logarithm of a normal number in (0, 1].
DTENSOR_HD float log_unit(float x) {
  constexpr std::int32_t kRootHalf = 0x3F3504F3;  // bits of sqrt(0.5)
  // x = 2^e (1 + m) with 1 + m in [sqrt(0.5), sqrt(2)).
  const std::int32_t shifted = float_bits(x) - kRootHalf;
  const auto e = static_cast<float>(shifted >> 23);
  const float m = float_of_bits((shifted & 0x007FFFFF) + kRootHalf) - 1.0F;
  const float z = m * m;
  float p = 7.0376836292E-2F;
  p = mul_add(p, m, -1.1514610310E-1F);
  p = mul_add(p, m, 1.1676998740E-1F);
  p = mul_add(p, m, -1.2420140846E-1F);
  p = mul_add(p, m, 1.4249322787E-1F);
  p = mul_add(p, m, -1.6668057665E-1F);
  p = mul_add(p, m, 2.0000714765E-1F);
  p = mul_add(p, m, -2.4999993993E-1F);
  p = mul_add(p, m, 3.3333331174E-1F);
  float y = mul_add(e, -2.12194440E-4F, p * m * z);
  y = mul_add(z, -0.5F, y);
  return mul_add(e, 0.693359375F, m + y);
}

// Square root of 0 or a normal number, by Newton iterations for 1 / sqrt(x) from the bit-level initial guess. The error
// is at most one unit in the last place. std::sqrt may set errno, which prevents vectorization.
DTENSOR_HD float square_root(float x) {
  float r = float_of_bits(0x5F375A86 - (float_bits(x) >> 1));
  const float half = 0.5F * x;
  for (int i = 0; i < 3; ++i) r *= mul_add(-half * r, r, 1.5F);
  return x * r;
}

// Sine and cosine of turns / 2^32 of a full turn. The two highest bits after rounding are the quadrant.
DTENSOR_HD void sin_cos(std::uint32_t turns, float& sine, float& cosine) {
  const std::uint32_t quadrant = (turns + 0x20000000U) >> 30;
  const auto rest = static_cast<std::int32_t>(turns - (quadrant << 30));
  const float t = static_cast<float>(rest) * 1.4629180792671596E-9F;  // 2 pi / 2^32; within pi / 4
  const float z = t * t;
  float s = mul_add(-1.9515295891E-4F, z, 8.3321608736E-3F);
  s = mul_add(s, z, -1.6666654611E-1F);
  s = mul_add(s * z, t, t);
  float c = mul_add(2.443315711809948E-5F, z, -1.388731625493765E-3F);
  c = mul_add(c, z, 4.166664568298827E-2F);
  c = mul_add(c * z, z, mul_add(z, -0.5F, 1.0F));
  // Odd quadrants swap sine and cosine; the quadrant determines the signs. Integer operations, since a conditional may
  // become a branch.
  const std::int32_t odd = -static_cast<std::int32_t>(quadrant & 1U);
  const std::int32_t swap = (float_bits(s) ^ float_bits(c)) & odd;
  const auto sine_sign = static_cast<std::int32_t>((quadrant & 2U) << 30);
  const auto cosine_sign = static_cast<std::int32_t>(((quadrant + 1U) & 2U) << 30);
  sine = float_of_bits((float_bits(s) ^ swap) ^ sine_sign);
  cosine = float_of_bits((float_bits(c) ^ swap) ^ cosine_sign);
}

}  // namespace dtensor::dist
