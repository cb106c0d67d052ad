// Interface between the host code with ATen (fill_cuda.cpp) and the kernels, which nvcc compiles without ATen.
#pragma once

#include <cstdint>

#include "random/distribution.h"
#include "random/philox.h"

struct CUstream_st;

namespace dtensor::cuda {

enum class Type : std::uint8_t { f32, f64, f16, bf16, u8, i8, i16, i32, i64, boolean };

// Global positions of a contiguous local tensor's elements, small enough for a kernel argument.
struct FillLayout {
  static constexpr int kMaxDims = 8;
  static constexpr int kMaxSegments = 8;
  int ndim = 0;
  // Consecutive global indices from `first` on. If true, the other fields are unused.
  bool is_one_range = false;
  std::uint64_t first = 0;
  std::int64_t local_sizes[kMaxDims] = {};
  std::int64_t strides[kMaxDims] = {};  // of the global tensor, row-major
  int segments[kMaxDims] = {};
  std::int64_t offsets[kMaxDims][kMaxSegments] = {};
  std::int64_t lengths[kMaxDims][kMaxSegments] = {};
};

// Asynchronous on `stream`. Returns the text of an error, or null.
const char* launch_fill(void* out, Type type, std::int64_t count, const FillLayout& layout, RandomKey key,
                        const Distribution& distribution, CUstream_st* stream);

}  // namespace dtensor::cuda
