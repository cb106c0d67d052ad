// The arithmetic of silu(gate) * up in float, for host and device: the same bits on both. Results are rounded once.
#pragma once

#include "internal/kernels/host_device.h"

namespace dtensor::nn {

// 1 / (1 + e^-x). The exponent is limited to the range of dist::exp_of.
DTENSOR_HD float sigmoid_of(float x) {
  constexpr float kLargest = 88.0F;
  const float sum = 1.0F + dist::exp_of(-x < kLargest ? -x : kLargest);
#if defined(__CUDA_ARCH__)
  return __fdiv_rn(1.0F, sum);
#else
  return 1.0F / sum;
#endif
}

DTENSOR_HD float swiglu_of(float gate, float up) { return dist::product(dist::product(gate, sigmoid_of(gate)), up); }

struct SwigluGradients {
  float gate, up;
};

// With s = sigmoid(x): d silu(x) / dx = s + x s (1 - s).
DTENSOR_HD SwigluGradients swiglu_gradients(float grad, float gate, float up) {
  const float s = sigmoid_of(gate), silu = dist::product(gate, s);
  const float slope = dist::mul_add(silu, 1.0F - s, s);
  return {dist::product(dist::product(grad, up), slope), dist::product(grad, silu)};
}

}  // namespace dtensor::nn
