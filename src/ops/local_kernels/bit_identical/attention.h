// Tiles of attention scores in a BitIdentical scope: blocks of queries times tiles of keys.
#pragma once

#include <limits>

#include "ops/local_kernels/bit_identical/tiles.h"
#include "ops/local_kernels/local_args.h"

namespace dtensor::bit_identical {

constexpr std::int64_t kKeys = 64;  // keys of a tile
constexpr std::int64_t kLanes = 8;  // partial sums of a row

// The operands of a call in the dtype of sums. Sizes are local; keys and features are unsharded.
struct AttentionOperands {
  at::Tensor q, k, v, mask;               // the mask has the sizes of the scores, or is undefined
  std::vector<std::int64_t> positions;    // of the local queries in the sequence
  std::vector<Contracted::Range> blocks;  // of the local queries
  std::int64_t block = 0;
  double scale = 1;
  bool causal = false;

  std::int64_t queries() const { return q.size(2); }
  std::int64_t keys() const { return k.size(2); }
  std::int64_t group() const { return q.size(1) / k.size(1); }  // query heads that share a head of keys
  std::int64_t tiles() const { return (keys() + kKeys - 1) / kKeys; }
};

AttentionOperands attention_operands(const LocalCall& call, const LocalArgs& args);

// Contiguous, in the dtype of sums.
at::Tensor in_sum_type(const at::Tensor& t);

// The rows of a matrix [rows, width] from `begin` on: its memory, or a copy that is padded with zeros to `count` rows.
template <class T>
const T* padded_rows(const T* matrix, std::int64_t rows, std::int64_t begin, std::int64_t count, std::int64_t width,
                     std::vector<T>& copy) {
  if (begin + count <= rows) return matrix + begin * width;
  copy.assign(static_cast<std::size_t>(count * width), T(0));
  std::copy(matrix + begin * width, matrix + rows * width, copy.begin());
  return copy.data();
}

// The sum of a row's elements, always in the same order. `term(i)` is element i.
template <class T, class Term>
T sum_of_row(std::int64_t count, const Term& term) {
  T lanes[kLanes] = {};
  for (std::int64_t i = 0; i < count; ++i) lanes[i % kLanes] += term(i);
  for (std::int64_t width = kLanes / 2; width > 0; width /= 2) {
    for (std::int64_t i = 0; i < width; ++i) lanes[i] += lanes[i + width];
  }
  return lanes[0];
}

// A tile of scores [block, kKeys] of one head, and the memory that its computation needs.
template <class T>
class ScoreTile {
 public:
  explicit ScoreTile(const AttentionOperands& o)
      : o_(o), memory_(at::empty({o.block, kKeys}, o.q.options())), values_(memory_.mutable_data_ptr<T>()) {}

  T* row(std::int64_t i) { return values_ + i * kKeys; }
  T* values() { return values_; }

  // Whether any of these queries sees a key of tile `j`.
  bool is_seen(const Contracted::Range& rows, std::int64_t j) const {
    if (!o_.causal) return true;
    const auto first = o_.positions.begin() + rows.begin;
    return *std::max_element(first, first + rows.length) >= j * kKeys;
  }

  // Scores of the queries `q` [block, E] and the transposed keys of tile `j` [E, kKeys]; minus infinity where hidden.
  void compute(const T* q, const T* keys, std::int64_t batch, std::int64_t head, const Contracted::Range& rows,
               std::int64_t j) {
    multiply_block(o_.block, kKeys, o_.q.size(3), q, o_.q.size(3), keys, values_, /*adds=*/false);
    for (std::int64_t i = 0; i < rows.length; ++i) mask_row(row(i), batch, head, rows.begin + i, j * kKeys);
  }

  // ATen's exponential of all elements: full vectors only.
  void exponentiate() { memory_.exp_(); }

 private:
  void mask_row(T* scores, std::int64_t batch, std::int64_t head, std::int64_t query, std::int64_t first) const {
    const auto scale = static_cast<T>(o_.scale);
    for (std::int64_t c = 0; c < kKeys; ++c) scores[c] *= scale;
    std::int64_t seen = std::min(kKeys, o_.keys() - first);
    if (o_.causal) seen = std::clamp<std::int64_t>(o_.positions[static_cast<std::size_t>(query)] + 1 - first, 0, seen);
    if (o_.mask.defined()) {
      const T* bias = o_.mask.const_data_ptr<T>() + batch * o_.mask.stride(0) + head * o_.mask.stride(1) +
                      query * o_.mask.stride(2) + first * o_.mask.stride(3);
      for (std::int64_t c = 0; c < seen; ++c) scores[c] += bias[c * o_.mask.stride(3)];
    }
    std::fill(scores + seen, scores + kKeys, -std::numeric_limits<T>::infinity());
  }

  const AttentionOperands& o_;
  at::Tensor memory_;
  T* values_;
};

}  // namespace dtensor::bit_identical
