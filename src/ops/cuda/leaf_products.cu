// The CUDA kernel of dtensor::multiply_leaves. A block computes a tile of the result in the order of leaf_products.h,
// without split sums, atomics or tensor cores.
#include "internal/kernels/lanes.cuh"
#include "ops/cuda/leaf_products.h"

namespace dtensor::bit_identical::cuda {
namespace {

using namespace leaf_products;
using lanes::cuda::SumOf;
using lanes::cuda::widen;

// Rows of a and columns of b of the block's tile in shared memory. Beyond the edges they are zeros.
template <class T, class S>
struct Stage {
  static constexpr int kWidth = kTile + 1;  // no bank conflicts
  using Rows = S (*)[kWidth];

  // The tile `first` on of a matrix with `size` rows; neighbors in memory are read by neighboring threads.
  __device__ void read(const T* from, std::int64_t row, std::int64_t column, std::int64_t first, std::int64_t size,
                       int depth, Rows to) const {
    for (int e = threadIdx.x; e < kDepth * kTile; e += kThreads) {
      const int p = column == 1 ? e % kDepth : e / kTile, r = column == 1 ? e / kDepth : e % kTile;
      const bool inside = p < depth && first + r < size;
      to[p][r] = inside ? static_cast<S>(widen(from[(first + r) * row + p * column])) : S(0);
    }
  }
  __device__ void load(std::int64_t begin, int depth) const {
    read(a + begin * p.a.column, p.a.row, p.a.column, blockIdx.x * std::int64_t{kTile}, p.m, depth, rows);
    read(b + begin * p.b.row, p.b.column, p.b.row, blockIdx.y * std::int64_t{kTile}, p.n, depth, columns);
    __syncthreads();
  }
  __device__ void release() const { __syncthreads(); }
  __device__ S left(int k, int i) const { return rows[k][threadIdx.x / kSide + i * kSide]; }
  __device__ S right(int k, int j) const { return columns[k][threadIdx.x % kSide + j * kSide]; }

  const Product& p;
  const T *a, *b;  // of this block's pair of matrices
  Rows rows, columns;
};

template <class T>
__global__ void __launch_bounds__(kThreads) multiply_tile(Product p) {
  using S = typename SumOf<T>::type;
  __shared__ S rows[kDepth][kTile + 1], columns[kDepth][kTile + 1];
  for (std::int64_t pair = blockIdx.z; pair < p.batch; pair += gridDim.z) {
    Stage<T, S> stage{p, static_cast<const T*>(p.a.data) + pair * p.a.matrix,
                      static_cast<const T*>(p.b.data) + pair * p.b.matrix, rows, columns};
    const auto store = [&](std::int64_t node, const S* sums) {
      S* out = static_cast<S*>(p.nodes) + (node * p.batch + pair) * p.m * p.n;
      for (int e = 0; e < kOwn * kOwn; ++e) {
        const std::int64_t r = blockIdx.x * std::int64_t{kTile} + threadIdx.x / kSide + e / kOwn * kSide;
        const std::int64_t c = blockIdx.y * std::int64_t{kTile} + threadIdx.x % kSide + e % kOwn * kSide;
        if (r < p.m && c < p.n) out[r * p.n + c] = sums[e];
      }
    };
    multiply<S>(p.leaves, p.count, stage, store);
  }
}

}  // namespace

const char* launch_multiply_leaves(const Product& p, cudaStream_t stream) {
  const auto tiles = [](std::int64_t n) { return static_cast<unsigned>((n + kTile - 1) / kTile); };
  const dim3 grid(tiles(p.m), tiles(p.n), static_cast<unsigned>(std::min<std::int64_t>(p.batch, 1 << 15)));
  lanes::cuda::with_type(p.type, [&](auto* null) {
    using T = std::remove_pointer_t<decltype(null)>;
    multiply_tile<T><<<grid, kThreads, 0, stream>>>(p);
  });
  return lanes::cuda::outcome();
}

}  // namespace dtensor::bit_identical::cuda
