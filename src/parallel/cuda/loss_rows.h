// CUDA kernels of cross entropy with pointer arguments, so that loss_rows.cu does not include ATen.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "internal/kernels/lanes.h"

namespace dtensor::loss_rows::cuda {

using lanes::Type;

// loss_rows::Rows (parallel/loss/row_kernels.h). Strides are in elements. `weight` has the accumulation type (double
// for f64, else float) and may be null: ones.
struct Rows {
  Type type;
  const void* values;
  std::int64_t tokens, stride, classes;
  const std::int64_t* targets;
  const void* weight;
  std::int64_t first, count, ignore_index;
  bool smooths;
};

// All functions return null or an error message. `top` is [tokens], `sums` [kSums, tokens], `factors` [kFactors,
// tokens], in the accumulation type.
const char* launch_largest(const Rows& rows, void* top, cudaStream_t stream);
const char* launch_sums(const Rows& rows, void* top, bool finds_top, void* sums, cudaStream_t stream);
// `out` has rows of `columns` elements, `out_stride` apart, and may be rows.values.
const char* launch_gradient(const Rows& rows, const void* factors, void* out, std::int64_t out_stride,
                            std::int64_t columns, cudaStream_t stream);

}  // namespace dtensor::loss_rows::cuda
