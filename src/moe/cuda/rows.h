// The CUDA loops below the permutations, in terms of pointers: rows.cu knows no ATen.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace dtensor::moe::cuda {

enum class Type : std::uint8_t { f32, f64, f16, bf16 };

struct Extent {
  std::int64_t tokens, choices, width;
};

// Each returns null, or what went wrong. `position` is [tokens, choices], -1: none. Weights have the type that sums are
// taken in: double for f64, else float.
const char* launch_permute(const Extent& e, const void* x, const std::int64_t* position, void* out,
                           std::int64_t row_bytes, cudaStream_t stream);
// `adds`: to what is in `out`. `weight` may be null: ones.
const char* launch_unpermute(const Extent& e, Type type, const void* rows, const std::int64_t* position,
                             const void* weight, void* out, bool adds, cudaStream_t stream);
const char* launch_unpermute_backward(const Extent& e, Type type, const void* grad, const void* rows,
                                      const std::int64_t* position, const void* weight, void* d_rows, void* d_weight,
                                      cudaStream_t stream);
// counts: [bins], zero before.
const char* launch_count(const std::int64_t* ids, std::int64_t entries, std::int64_t bins, std::int64_t* counts,
                         cudaStream_t stream);

}  // namespace dtensor::moe::cuda
