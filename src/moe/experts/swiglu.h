// silu(gate) * up of experts: one kernel for each pass on devices that take it, else ATen operators.
#pragma once

#include <ATen/core/Tensor.h>

#include "dtensor/export.h"

namespace dtensor::moe {

// Kernels on contiguous tensors of one size, in float32, float16 or bfloat16.
struct SwigluKernels {
  void (*forward)(const at::Tensor& gate, const at::Tensor& up, const at::Tensor& out) = nullptr;
  void (*backward)(const at::Tensor& grad, const at::Tensor& gate, const at::Tensor& up, const at::Tensor& d_gate,
                   const at::Tensor& d_up) = nullptr;
};
DTENSOR_API void register_swiglu_kernels(c10::DeviceType device, const SwigluKernels& kernels);
DTENSOR_API const SwigluKernels& swiglu_cpu_loops();

// Of local tensors with equal sizes. Differentiable once by the kernels.
DTENSOR_API at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& up);

}  // namespace dtensor::moe
