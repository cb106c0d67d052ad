// The CUDA kernel of dtensor::multiply_leaves with pointer arguments, so that leaf_products.cu does not include ATen.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "internal/kernels/lanes.h"
#include "ops/local_kernels/bit_identical/devices/leaf_products.h"

namespace dtensor::bit_identical::cuda {

// A stack of strided matrices.
struct Matrices {
  const void* data;
  std::int64_t matrix, row, column;  // strides in elements
};

// A product for each of `batch` pairs of [m, k] and [k, n] matrices.
struct Product {
  lanes::Type type;
  std::int64_t batch, m, n;
  Matrices a, b;
  const leaf_products::Leaf* leaves;  // on the device
  std::int64_t count;
  void* nodes;  // [nodes, batch, m, n], contiguous: double for f64, else float
};

// Returns null or an error message.
const char* launch_multiply_leaves(const Product& product, cudaStream_t stream);

}  // namespace dtensor::bit_identical::cuda
