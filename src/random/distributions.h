// From a block of random words to numbers of a distribution. Each struct says how many elements one block serves
// (kPerBlock), of which type (Value), and fills them; host and device run the same text. Everything but the functions
// of libm (log, sin, cos, tan) gives the same bits on both: products and sums are never contracted to a fused one.
#pragma once

#include <cmath>
#include <cstdint>

#include "random/philox.h"
#include "random/polynomials.h"

namespace dtensor::dist {

// The most significant half of a 128-bit product.
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

// [0, 1) with all bits that the type holds. By way of signed integers, which vector units convert.
DTENSOR_HD float unit(std::uint32_t x) { return static_cast<float>(static_cast<std::int32_t>(x >> 8)) * kInv24; }
DTENSOR_HD double unit(std::uint64_t x) { return static_cast<double>(x >> 11) * kInv53; }
// (0, 1], fine near 0, for logarithms.
DTENSOR_HD float open_unit(std::uint32_t x) {
  const auto upper = static_cast<float>(static_cast<std::int32_t>(x >> 16));
  const auto lower = static_cast<float>(static_cast<std::int32_t>(x & 0xFFFF));
  return mul_add(mul_add(upper, 65536.0F, lower), kInv32, 0.5F * kInv32);
}
DTENSOR_HD double open_unit(std::uint64_t x) { return (static_cast<double>(x >> 11) + 0.5) * kInv53; }
// (0, 1), exact in double.
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

// [from, to): `limit` is the largest value below `to` that the tensor's dtype holds, so that rounding stays below `to`.
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

// Box and Muller: elements 2 i and 2 i + 1 are the two coordinates of one point of the plane.
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

// Probability `p` of 1; one word an element whatever the dtype, so that a mask does not depend on it.
struct Bernoulli {
  using Value = bool;
  static constexpr int kPerBlock = 4;
  double p;
  DTENSOR_HD void operator()(const philox::Words& words, bool* out) const {
    for (int i = 0; i < kPerBlock; ++i) out[i] = static_cast<double>(words.w[i]) * kInv32d < p;
  }
};

// What Bernoulli compares with p.
struct UnitWord {
  using Value = double;
  static constexpr int kPerBlock = 4;
  DTENSOR_HD void operator()(const philox::Words& words, double* out) const {
    for (int i = 0; i < kPerBlock; ++i) out[i] = static_cast<double>(words.w[i]) * kInv32d;
  }
};

// from + [0, range), range <= 2^20, so that the bias of multiply-and-shift stays below 2^-12 of a probability.
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

// from + [0, range); range 0 stands for 2^64.
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

// The remaining ones are computed in double from one word an element, by inversion.
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
