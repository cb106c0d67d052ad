// Matrix products in tiles of one fixed size, summed by the tree over blocks of the contracted dimension.
#pragma once

#include "ops/local_kernels/bit_identical/tree.h"

namespace dtensor::bit_identical {

// The contracted indices of a rank: its leaves, and the local range of each.
struct Contracted {
  Leaves leaves;
  struct Range {
    std::int64_t leaf, begin, length;
  };
  std::vector<Range> ranges;
  std::int64_t block = 0;
};

// c [m, n] (+)= a [m, k] b [k, n], row-major without gaps. The bits of an element do not depend on its position.
void multiply_block(std::int64_t m, std::int64_t n, std::int64_t k, const float* a, const float* b, float* c,
                    bool adds);
void multiply_block(std::int64_t m, std::int64_t n, std::int64_t k, const double* a, const double* b, double* c,
                    bool adds);

// Dimensions `dims` of a tensor as contracted indices, row-major.
Contracted contracted_of(const MeshImpl& mesh, const TensorSpec* spec, at::IntArrayRef sizes, at::IntArrayRef dims);

// a [m, k] times b [k, n], completed over ranks: float for half types, else the operands' type.
at::Tensor multiply(const at::Tensor& a, const at::Tensor& b, const Contracted& k);

}  // namespace dtensor::bit_identical
