// dtensor::multiply_leaves on the host in the order of the CUDA kernel: the program of each thread of each block.
#pragma once

#include <ATen/ATen.h>
#include <ATen/Dispatch.h>
#include <ATen/OpMathType.h>
#include <torch/library.h>

#include <atomic>

#include "ops/local_kernels/bit_identical/devices/leaf_products.h"

namespace dtensor::test {

namespace leaf_products = bit_identical::leaf_products;

// What one thread reads: rows of a [m, k] and columns of b [k, n], zeros beyond the edges.
template <class T, class S>
struct HostStage {
  void load(std::int64_t first, int) { begin = first; }
  void release() {}
  S left(int k, int i) const { return element(a, row + i * leaf_products::kSide, begin + k, a.size(0)); }
  S right(int k, int j) const { return element(b, column + j * leaf_products::kSide, begin + k, b.size(0)); }
  static S element(const at::Tensor& t, std::int64_t r, std::int64_t k, std::int64_t rows) {
    return r < rows ? static_cast<S>(t.const_data_ptr<T>()[r * t.stride(0) + k * t.stride(1)]) : S(0);
  }

  at::Tensor a, b;  // b is transposed
  std::int64_t row, column, begin = 0;
};

template <class T, class S>
void run_threads(const std::vector<leaf_products::Leaf>& leaves, const at::Tensor& a, const at::Tensor& b,
                 const at::Tensor& nodes) {
  using namespace leaf_products;
  for (std::int64_t tile_row = 0; tile_row < a.size(0); tile_row += kTile) {
    for (std::int64_t tile_column = 0; tile_column < b.size(1); tile_column += kTile) {
      for (int thread = 0; thread < kThreads; ++thread) {
        HostStage<T, S> stage{a, b.t(), tile_row + thread / kSide, tile_column + thread % kSide};
        const auto store = [&](std::int64_t node, const S* sums) {
          for (int e = 0; e < kOwn * kOwn; ++e) {
            const auto r = stage.row + e / kOwn * kSide, c = stage.column + e % kOwn * kSide;
            if (r >= a.size(0) || c >= b.size(1)) continue;
            nodes.mutable_data_ptr<S>()[node * nodes.stride(0) + r * nodes.stride(1) + c] = sums[e];
          }
        };
        multiply<S>(leaves.data(), std::ssize(leaves), stage, store);
      }
    }
  }
}

inline std::atomic<int> products_by_threads;

inline at::Tensor multiply_by_threads(const at::Tensor& a, const at::Tensor& b, at::IntArrayRef lengths,
                                      at::IntArrayRef merges) {
  ++products_by_threads;
  const auto leaves = leaf_products::leaves_of(lengths.data(), merges.data(), lengths.size());
  const at::Tensor nodes = at::zeros({std::ssize(merges) - c10::sum_integers(merges), a.size(0), a.size(1), b.size(2)},
                                     a.options().dtype(at::toOpMathType(a.scalar_type())));
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, a.scalar_type(), "products by threads", [&] {
    for (std::int64_t i = 0; i < a.size(0); ++i) {
      run_threads<scalar_t, at::opmath_type<scalar_t>>(leaves, a[i], b[i], nodes.select(1, i));
    }
  });
  return nodes;
}

// Whether the CPU's tiles of float32 are chains of fused additions in ascending order, as those of CUDA are.
inline bool cpu_adds_in_order() {
  const at::Tensor a = at::randn({1, 64, 512}), b = at::randn({1, 512, 64});
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("dtensor::multiply_leaves", "")
                             .typed<decltype(multiply_by_threads)>();
  return at::equal(op.call(a, b, {512}, {0}), multiply_by_threads(a, b, {512}, {0}));
}

// The products are those of a device whose memory is the host's during its lifetime.
struct ProductKernels {
  explicit ProductKernels(c10::DispatchKey device)
      : library(torch::Library::IMPL, "dtensor", device, __FILE__, __LINE__) {
    products_by_threads = 0;
    library.impl("multiply_leaves", multiply_by_threads);
  }
  torch::Library library;
};

}  // namespace dtensor::test
