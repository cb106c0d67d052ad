// The arithmetic of cross entropy on one row of logits, for host and device: the same bits in float on both.
// Sums have the order of internal/kernels/lanes.h for blocks of kWarps.
#pragma once

#include <cmath>
#include <cstdint>

#include "internal/kernels/host_device.h"

namespace dtensor::loss_rows {

inline constexpr int kWarps = 16;

// What a row gives: the sum of exponentials, the target's logit and its class weight, and the weighted sum that label
// smoothing needs. Logits are relative to the largest one of the row.
enum Sum : int { kExponentials, kTarget, kTargetWeight, kSmoothing, kSums };

// Factors of a row's gradient; see gradient_of.
enum Factor : int { kLogSum, kSoftmax, kSmooth, kPeak, kFactors };

template <class S>
DTENSOR_HD S lowest() {
  return static_cast<S>(-INFINITY);
}

// NaN wins.
template <class S>
DTENSOR_HD S larger(S a, S b) {
  return b > a || b != b ? b : a;
}

template <class S>
struct GradientRow {
  S log_sum, softmax, smooth, peak;
  std::int64_t target;  // among this rank's classes, or any other number
};

// softmax * exp(logit - log_sum) - smooth * weight, minus peak for the target.
template <class S>
DTENSOR_HD S gradient_of(const GradientRow<S>& row, S logit, S weight, std::int64_t index) {
  const S share = dist::mul_add(-row.smooth, weight, dist::product(dist::exp_of(logit - row.log_sum), row.softmax));
  return index == row.target ? share - row.peak : share;
}

}  // namespace dtensor::loss_rows
