// CUDA kernels for row permutations with pointer arguments, so that rows.cu does not include ATen.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "internal/kernels/lanes.h"

namespace dtensor::moe::cuda {

using lanes::Type;

struct Extent {
  std::int64_t tokens, choices, width;
};

// All functions return null or an error message. `position` is [tokens, choices], -1: none. Weights have the
// accumulation type: double for f64, else float.
const char* launch_permute(const Extent& e, const void* x, const std::int64_t* position, void* out,
                           std::int64_t row_bytes, cudaStream_t stream);
// `adds`: adds to `out`. `weight` may be null, which means ones.
const char* launch_unpermute(const Extent& e, Type type, const void* rows, const std::int64_t* position,
                             const void* weight, void* out, bool adds, cudaStream_t stream);
const char* launch_unpermute_backward(const Extent& e, Type type, const void* grad, const void* rows,
                                      const std::int64_t* position, const void* weight, void* d_rows, void* d_weight,
                                      cudaStream_t stream);
// counts: [bins], initialized with zeros.
const char* launch_count(const std::int64_t* ids, std::int64_t entries, std::int64_t bins, std::int64_t* counts,
                         cudaStream_t stream);

}  // namespace dtensor::moe::cuda
