// The CUDA kernels of dtensor::gated_product for SwiGLU, registered when the library dtensor_cuda is loaded.
#include <ATen/ATen.h>
#include <torch/library.h>

#include "internal/gated_product.h"
#include "internal/kernels/cuda_launch.h"
#include "internal/kernels/gpu_kernels.h"
#include "nn/cuda/swiglu.h"

namespace dtensor::nn {
namespace {

cuda::Type type_of(const at::Tensor& t) { return kernel_type_of<cuda::Type>(t, "gated_product", "operands"); }

template <class... Others>
bool has_kernel(std::string_view activation, const at::Tensor& gate, const Others&... others) {
  const auto fits = [&](const at::Tensor& t) {
    return t.is_contiguous() && t.sizes().equals(gate.sizes()) && t.scalar_type() == gate.scalar_type();
  };
  return activation == "silu" && gate.scalar_type() != at::kDouble && gate.numel() > 0 && fits(gate) &&
         (fits(others) && ...) && takes_gpu_kernel(GpuKernel::swiglu, c10::DeviceType::CUDA);
}

at::Tensor forward(const at::Tensor& gate, const at::Tensor& up, std::string_view activation) {
  if (!has_kernel(activation, gate, up)) return gated_product_of_aten(gate, up, activation);
  auto result = at::empty_like(gate);
  launch_on_device_of(gate, "gated_product", [&](auto stream) {
    return cuda::launch_swiglu(type_of(gate), gate.numel(), gate.const_data_ptr(), up.const_data_ptr(),
                               result.mutable_data_ptr(), stream);
  });
  return result;
}

std::tuple<at::Tensor, at::Tensor> backward(const at::Tensor& grad, const at::Tensor& gate, const at::Tensor& up,
                                            std::string_view activation) {
  if (!has_kernel(activation, gate, up, grad)) return gated_product_gradients_of_aten(grad, gate, up, activation);
  auto d_gate = at::empty_like(gate), d_up = at::empty_like(up);
  launch_on_device_of(gate, "gated_product_backward", [&](auto stream) {
    return cuda::launch_swiglu_backward(type_of(gate), gate.numel(), grad.const_data_ptr(), gate.const_data_ptr(),
                                        up.const_data_ptr(), d_gate.mutable_data_ptr(), d_up.mutable_data_ptr(),
                                        stream);
  });
  return {d_gate, d_up};
}

TORCH_LIBRARY_IMPL(dtensor, CUDA, m) {
  m.impl("gated_product", forward);
  m.impl("gated_product_backward", backward);
}

}  // namespace
}  // namespace dtensor::nn
