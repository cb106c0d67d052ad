// CUDA kernels of layer norm with pointer arguments, so that layer_norm.cu does not include ATen.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "internal/kernels/lanes.h"

namespace dtensor::row_norm::cuda {

using lanes::Type;

// row_norm::Saved (row_norm/kernels.h). `weight` may be null: ones. So may `mean`: RMS norm.
struct Rows {
  Type type;
  std::int64_t rows, n;
  const void* x;
  float *mean, *rstd;
  const float* weight;
};

// All functions return null or an error message. `bias` may be null: zeros.
const char* launch_forward(const Rows& rows, const float* bias, float eps, void* y, cudaStream_t stream);
const char* launch_input_gradient(const Rows& rows, const void* grad, void* result, cudaStream_t stream);
const char* launch_parameter_gradients(const Rows& rows, const void* grad, float* partial, float* sums,
                                       cudaStream_t stream);

}  // namespace dtensor::row_norm::cuda
