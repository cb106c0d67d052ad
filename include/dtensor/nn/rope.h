// Rotary positions (RoFormer, arXiv:2104.09864): pairs of elements of a head are turned by angles that grow with the
// token's position, and the usual ways to reach beyond the positions that a model was trained on.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "dtensor/export.h"

namespace dtensor::nn {

// How far positions reach.
enum class RopeScaling : std::uint8_t {
  none,
  linear,    // positions are divided by `factor` (arXiv:2306.15595)
  dynamic,   // the base grows with the sequence once it exceeds max_positions ("dynamic NTK")
  yarn,      // low frequencies are divided by `factor`, high ones are not, between them a ramp (arXiv:2309.00071)
  longrope,  // a divisor for each frequency, one list for short and one for long sequences (arXiv:2402.13753)
  llama3,    // as yarn, the ramp over wavelengths (Llama 3.1)
};

// Which elements are turned, and how fast.
struct RopeOptions {
  std::int64_t size = 0;  // elements of a head that are turned, its first ones; even
  // Pair i turns by position * base ** (-2 i / size).
  double base = 10000;
  bool interleaved = false;        // elements 2 i and 2 i + 1 are a pair; else i and i + size / 2
  std::int64_t max_positions = 0;  // of the model, scaling included (dynamic)
  // How far positions reach, and by what factor.
  RopeScaling scaling = RopeScaling::none;
  double factor = 1;
  std::int64_t original_positions = 0;           // trained on, without scaling (yarn, longrope, llama3)
  double beta_fast = 32, beta_slow = 1;          // yarn: turns over the original positions where the ramp ends
  bool truncate = true;                          // yarn: the ramp's ends are whole numbers
  double mscale = 0, mscale_all_dim = 0;         // yarn: both set, of the attention factor
  double low_frequency = 1, high_frequency = 4;  // llama3: original_positions over wavelength, the ramp's ends
  std::vector<double> short_factors = {}, long_factors = {};  // longrope: [size / 2]
  std::optional<double> attention_factor = {};  // multiplies sine and cosine; by default the scaling's own
};

// The angles of positions, and turning by them.
class DTENSOR_API Rope {
 public:
  explicit Rope(RopeOptions options);  // an error where the options contradict each other
  // As given.
  const RopeOptions& options() const { return options_; }

  // [size / 2] float64 on the CPU: radians from one position to the next, for a sequence of `length` tokens.
  at::Tensor frequencies(std::int64_t length) const;
  double attention_factor() const;

  // Of a run of positions.
  struct Angles {
    at::Tensor cos, sin;  // [count, size / 2], the attention factor in them
  };
  // Of the positions first .. first + count - 1. Plain tensors: ranks that hold part of a sequence or of the heads take
  // what they need.
  Angles angles(std::int64_t first, std::int64_t count, at::TensorOptions like) const;
  // x: [batch, heads, count, E] with E >= size.
  at::Tensor rotate(const at::Tensor& x, const Angles& angles) const;

 private:
  Angles make(std::int64_t first, std::int64_t count, std::int64_t length, at::TensorOptions like) const;

  RopeOptions options_;
  mutable Angles kept_;  // of the positions from 0 on, where they do not depend on the length
};

}  // namespace dtensor::nn
