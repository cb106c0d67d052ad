// Between the host code that knows ATen (fill_cuda.cpp) and the kernels, which nvcc compiles without it.
#pragma once

#include <cstdint>

#include "random/distribution.h"
#include "random/philox.h"

struct CUstream_st;

namespace dtensor::cuda {

enum class Type : std::uint8_t { f32, f64, f16, bf16, u8, i8, i16, i32, i64, boolean };

// Where the elements of a contiguous local tensor lie in the global one; small enough to be a kernel's argument.
struct FillLayout {
  static constexpr int kMaxDims = 8;
  static constexpr int kMaxSegments = 8;
  int ndim = 0;
  bool is_one_range = false;  // consecutive global indices, from `first` on; the rest is unused then
  std::uint64_t first = 0;
  std::int64_t local_sizes[kMaxDims] = {};
  std::int64_t strides[kMaxDims] = {};  // global, row-major
  int segments[kMaxDims] = {};
  std::int64_t offsets[kMaxDims][kMaxSegments] = {};
  std::int64_t lengths[kMaxDims][kMaxSegments] = {};
};

// Asynchronous on `stream`. Returns an error's text, or null.
const char* launch_fill(void* out, Type type, std::int64_t count, const FillLayout& layout, RandomKey key,
                        const Distribution& distribution, CUstream_st* stream);

}  // namespace dtensor::cuda
