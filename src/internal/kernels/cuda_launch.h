// Calls of CUDA kernels from files that include ATen: element types, and the current stream.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

namespace dtensor {

// The kernel's name for the dtype of `t`. `what` and `operand` are for the error.
template <class Type>
Type kernel_type_of(const at::Tensor& t, const char* what, const char* operand) {
  switch (t.scalar_type()) {
    case at::kFloat:
      return Type::f32;
    case at::kDouble:
      return Type::f64;
    case at::kHalf:
      return Type::f16;
    case at::kBFloat16:
      return Type::bf16;
    default:
      TORCH_CHECK(false, what, ": expected float32, float64, float16 or bfloat16 ", operand, ", got ", t.scalar_type());
  }
}

// Calls launch(stream) for the current stream of the tensor's device. It returns null or an error message.
template <class Launch>
void launch_on_device_of(const at::Tensor& t, const char* what, const Launch& launch) {
  const c10::cuda::CUDAGuard guard(t.device());
  const auto* error = launch(c10::cuda::getCurrentCUDAStream(t.device().index()).stream());
  TORCH_CHECK(error == nullptr, what, " on ", t.device(), ": ", error);
}

}  // namespace dtensor
