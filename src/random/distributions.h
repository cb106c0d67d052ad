// Converts blocks of random words to numbers of a distribution. Each struct defines how many elements one block yields
// (kPerBlock), their type (Value), and how to compute them. Host and device share this code. Except for libm functions
// (log, sin, cos, tan, exp), both give equal bits, because no product and sum is contracted to a fused operation.
#pragma once

#include <cmath>
#include <cstdint>

#include "random/philox.h"
#include "random/polynomials.h"

namespace dtensor::dist {

// The upper 64 bits of a 128-bit product.
DTENSOR_HD std::uint64_t multiply_high(std::uint64_t a, std::uint64_t b) {
#if defined(__CUDA_ARCH__)
  return __umul64hi(a, b);
#else
  __extension__ using Wide = unsigned __int128;
  return static_cast<std::uint64_t>((static_cast<Wide>(a) * b) >> 64);
#endif
}

inline constexpr float kInv24 = 1.0F / (1 << 24);
inline constexpr float kInv32 = 1.0F / 4294967296.0F;
inline constexpr double kInv32d = 1.0 / 4294967296.0;
inline constexpr double kInv53 = 1.0 / 9007199254740992.0;

// Uniform in [0, 1) with all mantissa bits of the type. It converts signed integers, because vector units support that.
DTENSOR_HD float unit(std::uint32_t x) { return static_cast<float>(static_cast<std::int32_t>(x >> 8)) * kInv24; }
DTENSOR_HD double unit(std::uint64_t x) { return static_cast<double>(x >> 11) * kInv53; }
// Uniform in (0, 1] with high resolution near 0, for logarithms.
DTENSOR_HD float open_unit(std::uint32_t x) {
  const auto upper = static_cast<float>(static_cast<std::int32_t>(x >> 16));
  const auto lower = static_cast<float>(static_cast<std::int32_t>(x & 0xFFFF));
  return mul_add(mul_add(upper, 65536.0F, lower), kInv32, 0.5F * kInv32);
}
DTENSOR_HD double open_unit(std::uint64_t x) { return (static_cast<double>(x >> 11) + 0.5) * kInv53; }
// Uniform in (0, 1), exact in double.
DTENSOR_HD double inner_unit(std::uint32_t x) { return (static_cast<double>(x) + 0.5) * kInv32d; }

template <class Real>
struct Lanes;
template <>
struct Lanes<float> {
  static constexpr int kPerBlock = 4;
  DTENSOR_HD static std::uint32_t get(const philox::Words& words, int i) { return words.w[i]; }
};
template <>
struct Lanes<double> {
  static constexpr int kPerBlock = 2;
  DTENSOR_HD static std::uint64_t get(const philox::Words& words, int i) { return philox::word64(words, i); }
};

// Uniform in [from, to). `limit` is the largest value below `to` in the tensor's dtype, so that rounding does not reach
// `to`.
template <class Real>
struct Uniform {
  using Value = Real;
  static constexpr int kPerBlock = Lanes<Real>::kPerBlock;
  Real from, span, limit;
  DTENSOR_HD void operator()(const philox::Words& words, Real* out) const {
    for (int i = 0; i < kPerBlock; ++i) {
      const Real v = mul_add(unit(Lanes<Real>::get(words, i)), span, from);
      out[i] = v < limit ? v : limit;
    }
  }
};

// Box-Muller transform: elements 2 i and 2 i + 1 are the coordinates of one point in the plane.
DTENSOR_HD void normal_pair(std::uint32_t a, std::uint32_t b, float& x, float& y) {
  const float radius = square_root(-2.0F * log_unit(open_unit(a)));
  float sine = 0;
  float cosine = 0;
  sin_cos(b, sine, cosine);
  x = radius * cosine;
  y = radius * sine;
}

DTENSOR_HD void normal_pair(std::uint64_t a, std::uint64_t b, double& x, double& y) {
  const double radius = std::sqrt(-2.0 * std::log(open_unit(a)));
  const double angle = 6.283185307179586 * unit(b);
  x = radius * std::cos(angle);
  y = radius * std::sin(angle);
}

template <class Real>
struct Normal {
  using Value = Real;
  static constexpr int kPerBlock = Lanes<Real>::kPerBlock;
  Real mean, std;
  DTENSOR_HD void operator()(const philox::Words& words, Real* out) const {
    for (int i = 0; i < kPerBlock; i += 2) {
      Real x = 0;
      Real y = 0;
      normal_pair(Lanes<Real>::get(words, i), Lanes<Real>::get(words, i + 1), x, y);
      out[i] = mul_add(this->std, x, mean);
      out[i + 1] = mul_add(this->std, y, mean);
    }
  }
};

template <class Real>
struct LogNormal {
  using Value = Real;
  static constexpr int kPerBlock = Lanes<Real>::kPerBlock;
  Normal<Real> normal;
  DTENSOR_HD void operator()(const philox::Words& words, Real* out) const {
    normal(words, out);
    for (int i = 0; i < kPerBlock; ++i) out[i] = std::exp(out[i]);
  }
};

// 1 with probability `p`. It uses one word per element for all dtypes, so a mask does not depend on the dtype.
struct Bernoulli {
  using Value = bool;
  static constexpr int kPerBlock = 4;
  double p;
  DTENSOR_HD void operator()(const philox::Words& words, bool* out) const {
    for (int i = 0; i < kPerBlock; ++i) out[i] = static_cast<double>(words.w[i]) * kInv32d < p;
  }
};

// The uniform number that Bernoulli compares with p.
struct UnitWord {
  using Value = double;
  static constexpr int kPerBlock = 4;
  DTENSOR_HD void operator()(const philox::Words& words, double* out) const {
    for (int i = 0; i < kPerBlock; ++i) out[i] = static_cast<double>(words.w[i]) * kInv32d;
  }
};

// Integers in from + [0, range) with range <= 2^20, so that the bias of multiply-and-shift is below 2^-12 of a
// probability.
struct SmallInteger {
  using Value = std::int64_t;
  static constexpr int kPerBlock = 4;
  static constexpr std::uint64_t kMaxRange = 1 << 20;
  std::int64_t from;
  std::uint64_t range;
  DTENSOR_HD void operator()(const philox::Words& words, std::int64_t* out) const {
    for (int i = 0; i < kPerBlock; ++i) out[i] = from + static_cast<std::int64_t>((words.w[i] * range) >> 32);
  }
};

// Integers in from + [0, range); range 0 means 2^64.
struct Integer {
  using Value = std::int64_t;
  static constexpr int kPerBlock = 2;
  std::int64_t from;
  std::uint64_t range;
  DTENSOR_HD void operator()(const philox::Words& words, std::int64_t* out) const {
    for (int i = 0; i < kPerBlock; ++i) {
      const auto x = philox::word64(words, i);
      out[i] = static_cast<std::int64_t>(static_cast<std::uint64_t>(from) + (range == 0 ? x : multiply_high(x, range)));
    }
  }
};

// The following distributions use inversion in double, with one word per element.
struct Exponential {
  using Value = double;
  static constexpr int kPerBlock = 4;
  double lambda;
  DTENSOR_HD void operator()(const philox::Words& words, double* out) const {
    for (int i = 0; i < kPerBlock; ++i) out[i] = -std::log(inner_unit(words.w[i])) / lambda;
  }
};

struct Geometric {
  using Value = double;
  static constexpr int kPerBlock = 4;
  double log_fail;  // log(1 - p)
  DTENSOR_HD void operator()(const philox::Words& words, double* out) const {
    for (int i = 0; i < kPerBlock; ++i) out[i] = std::ceil(std::log(inner_unit(words.w[i])) / log_fail);
  }
};

struct Cauchy {
  using Value = double;
  static constexpr int kPerBlock = 4;
  double median, sigma;
  DTENSOR_HD void operator()(const philox::Words& words, double* out) const {
    for (int i = 0; i < kPerBlock; ++i) {
      out[i] = mul_add(sigma, std::tan(3.141592653589793 * (inner_unit(words.w[i]) - 0.5)), median);
    }
  }
};

}  // namespace dtensor::dist
