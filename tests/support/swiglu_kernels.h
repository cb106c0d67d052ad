// Loops on the host with the arithmetic of the CUDA kernels of SwiGLU, as kernels of a device for
// dtensor::gated_product.
#pragma once

#include <ATen/ATen.h>
#include <ATen/Dispatch.h>
#include <torch/library.h>

#include <atomic>

#include "internal/gated_product.h"
#include "internal/kernels/gpu_kernels.h"
#include "nn/swiglu_arithmetic.h"

namespace dtensor::test {

inline std::atomic<int> swiglu_passes;

inline bool takes_swiglu(const at::Tensor& gate, std::string_view activation) {
  return activation == "silu" && gate.scalar_type() != at::kDouble &&
         takes_gpu_kernel(GpuKernel::swiglu, gate.device().type());
}

inline at::Tensor swiglu_loop(const at::Tensor& given_gate, const at::Tensor& given_up, std::string_view activation) {
  if (!takes_swiglu(given_gate, activation)) return gated_product_of_aten(given_gate, given_up, activation);
  ++swiglu_passes;
  const at::Tensor gate = given_gate.contiguous(), up = given_up.contiguous(), y = at::empty_like(gate);
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, gate.scalar_type(), "swiglu", [&] {
    const auto *g = gate.const_data_ptr<scalar_t>(), *u = up.const_data_ptr<scalar_t>();
    auto* out = y.mutable_data_ptr<scalar_t>();
    for (std::int64_t i = 0; i < gate.numel(); ++i) {
      out[i] = static_cast<scalar_t>(nn::swiglu_of(static_cast<float>(g[i]), static_cast<float>(u[i])));
    }
  });
  return y;
}

inline std::tuple<at::Tensor, at::Tensor> swiglu_backward_loop(const at::Tensor& given_grad,
                                                               const at::Tensor& given_gate, const at::Tensor& given_up,
                                                               std::string_view activation) {
  if (!takes_swiglu(given_gate, activation)) {
    return gated_product_gradients_of_aten(given_grad, given_gate, given_up, activation);
  }
  ++swiglu_passes;
  const at::Tensor grad = given_grad.contiguous(), gate = given_gate.contiguous(), up = given_up.contiguous();
  const at::Tensor to_gate = at::empty_like(gate), to_up = at::empty_like(up);
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, gate.scalar_type(), "swiglu", [&] {
    const auto *dy = grad.const_data_ptr<scalar_t>(), *g = gate.const_data_ptr<scalar_t>(),
               *u = up.const_data_ptr<scalar_t>();
    auto *dg = to_gate.mutable_data_ptr<scalar_t>(), *du = to_up.mutable_data_ptr<scalar_t>();
    for (std::int64_t i = 0; i < gate.numel(); ++i) {
      const auto d =
          nn::swiglu_gradients(static_cast<float>(dy[i]), static_cast<float>(g[i]), static_cast<float>(u[i]));
      dg[i] = static_cast<scalar_t>(d.gate), du[i] = static_cast<scalar_t>(d.up);
    }
  });
  return {to_gate, to_up};
}

// The loops are kernels of `device` during its lifetime, as those of a GPU are with its library. `swiglu_passes` counts
// their calls.
struct SwigluKernels {
  explicit SwigluKernels(c10::DispatchKey device)
      : library(torch::Library::IMPL, "dtensor", device, __FILE__, __LINE__) {
    library.impl("gated_product", swiglu_loop);
    library.impl("gated_product_backward", swiglu_backward_loop);
  }
  torch::Library library;
};

}  // namespace dtensor::test
