// The order of a product of matrices in leaves (dtensor::multiply_leaves), for host and device: a leaf is a chain of
// additions in ascending order, and leaves are combined by the tree.
//
// A tile of kTile x kTile elements of the result is computed by kThreads threads. The element in row r and column c of
// the tile belongs to thread (r % kSide, c % kSide), which has kOwn rows and kOwn columns.
#pragma once

#include <cstdint>
#include <vector>

#include "internal/kernels/host_device.h"

namespace dtensor::bit_identical::leaf_products {

inline constexpr int kTile = 64, kOwn = 4, kSide = kTile / kOwn, kThreads = kSide * kSide;
inline constexpr int kDepth = 16;       // contracted indices that are staged together
inline constexpr int kMostLevels = 24;  // of the tree

// `length` contracted indices from `begin` on. After it, `merges` sums before it are added to it, from right to left.
// node: the row of the result of this sum; -1 if it is merged later.
struct Leaf {
  std::int64_t begin;
  std::int32_t length, merges, node;
};

// Sums that are merged later are left siblings of different levels, so at most as many as the tree has levels.
inline std::vector<Leaf> leaves_of(const std::int64_t* lengths, const std::int64_t* merges, std::size_t count) {
  std::vector<Leaf> leaves;
  std::vector<std::size_t> last;  // leaf of each sum so far
  std::int64_t begin = 0;
  for (std::size_t i = 0; i < count; begin += lengths[i++]) {
    leaves.push_back({begin, static_cast<std::int32_t>(lengths[i]), static_cast<std::int32_t>(merges[i]), -1});
    last.resize(last.size() - static_cast<std::size_t>(merges[i]));
    last.push_back(i);
  }
  for (std::size_t node = 0; node < last.size(); ++node) leaves[last[node]].node = static_cast<std::int32_t>(node);
  return leaves;
}

// a b + sum: rounded once in float, as in the tiles of the CPU, and twice in double.
DTENSOR_HD float add_product(float a, float b, float sum) {
#if defined(__CUDA_ARCH__)
  return __fmaf_rn(a, b, sum);
#else
  return std::fmaf(a, b, sum);
#endif
}
DTENSOR_HD double add_product(double a, double b, double sum) { return dist::mul_add(a, b, sum); }

// The elements of one thread. stage.load(begin, depth) makes contracted indices readable for stage.left(index, i) and
// stage.right(index, j), i and j < kOwn, until stage.release(). store(node, sums) writes a row of the result.
template <class S, class Stage, class Store>
DTENSOR_HD void multiply(const Leaf* leaves, std::int64_t count, Stage& stage, const Store& store) {
  constexpr int kElements = kOwn * kOwn;
  S pending[kMostLevels][kElements];
  int top = 0;
  for (std::int64_t l = 0; l < count; ++l) {
    const Leaf leaf = leaves[l];
    S sums[kElements] = {};
    for (std::int32_t k = 0; k < leaf.length; k += kDepth) {
      const int depth = leaf.length - k < kDepth ? leaf.length - k : kDepth;
      stage.load(leaf.begin + k, depth);
      for (int p = 0; p < depth; ++p) {
        S right[kOwn];
        for (int j = 0; j < kOwn; ++j) right[j] = stage.right(p, j);
        for (int i = 0; i < kOwn; ++i) {
          const S left = stage.left(p, i);
          for (int j = 0; j < kOwn; ++j) sums[i * kOwn + j] = add_product(left, right[j], sums[i * kOwn + j]);
        }
      }
      stage.release();
    }
    for (std::int32_t m = 0; m < leaf.merges; ++m) {
      --top;
      for (int e = 0; e < kElements; ++e) sums[e] = pending[top][e] + sums[e];
    }
    if (leaf.node >= 0) {
      store(leaf.node, sums);
      continue;
    }
    for (int e = 0; e < kElements; ++e) pending[top][e] = sums[e];
    ++top;
  }
}

}  // namespace dtensor::bit_identical::leaf_products
