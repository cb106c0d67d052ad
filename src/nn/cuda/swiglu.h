// CUDA kernels of SwiGLU with pointer arguments, so that swiglu.cu does not include ATen.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "internal/kernels/lanes.h"

namespace dtensor::nn::cuda {

using lanes::Type;

// `n` elements of a type other than f64. Both return null or an error message.
const char* launch_swiglu(Type type, std::int64_t n, const void* gate, const void* up, void* out, cudaStream_t stream);
const char* launch_swiglu_backward(Type type, std::int64_t n, const void* grad, const void* gate, const void* up,
                                   void* d_gate, void* d_up, cudaStream_t stream);

}  // namespace dtensor::nn::cuda
