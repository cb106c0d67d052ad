// Matrix products in tiles of one fixed size, summed by the tree over blocks of the contracted dimension.
#pragma once

#include "ops/local_kernels/bit_identical/tree.h"
#include "ops/local_kernels/local_kernel.h"

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

// c [m, n] (+)= a [m, k] b [k, n], row-major without gaps, except for `row` elements from one row of a to the next. The
// bits of an element do not depend on its position.
void multiply_block(std::int64_t m, std::int64_t n, std::int64_t k, const float* a, std::int64_t row, const float* b,
                    float* c, bool adds);
void multiply_block(std::int64_t m, std::int64_t n, std::int64_t k, const double* a, std::int64_t row, const double* b,
                    double* c, bool adds);

// Transposes [rows, columns], whose rows have a distance of `from_row`, to rows with a distance of `to_row`.
template <class T, class From>
void transpose(const From* from, std::int64_t from_row, std::int64_t rows, std::int64_t columns, T* to,
               std::int64_t to_row) {
  constexpr std::int64_t kRows = 4;  // the compiler writes as many elements at once
  for (std::int64_t i = 0; i < rows; i += kRows) {
    const From* first = from + i * from_row;
    if (i + kRows > rows) {
      for (std::int64_t r = 0; r < rows - i; ++r) {
        for (std::int64_t j = 0; j < columns; ++j) to[j * to_row + i + r] = static_cast<T>(first[r * from_row + j]);
      }
      return;
    }
    for (std::int64_t j = 0; j < columns; ++j) {
      const T column[kRows] = {static_cast<T>(first[j]), static_cast<T>(first[j + from_row]),
                               static_cast<T>(first[j + 2 * from_row]), static_cast<T>(first[j + 3 * from_row])};
      std::copy_n(column, kRows, to + j * to_row + i);
    }
  }
}

// Throws in a dry run, where tensors have no values.
void check_values(const LocalCall& call, const at::Tensor& t);

// Dimensions `dims` of a tensor as contracted indices, row-major.
Contracted contracted_of(const MeshImpl& mesh, const TensorSpec* spec, at::IntArrayRef sizes, at::IntArrayRef dims);

// The result of dtensor::multiply_leaves for these operands, without values.
at::Tensor empty_nodes(const at::Tensor& a, const at::Tensor& b, at::IntArrayRef merges);

// The product of a [m, k] and b [k, n] for each of this rank's nodes: [nodes, m, n]. The operands may be stacks of
// matrices, whose number is then a second dimension of the result.
at::Tensor multiply_nodes(const at::Tensor& a, const at::Tensor& b, const Contracted& k);
// The same, completed over ranks: float for half types, else the operands' type.
at::Tensor multiply(const at::Tensor& a, const at::Tensor& b, const Contracted& k);

}  // namespace dtensor::bit_identical
