// How one mesh dimension holds a tensor: whole (Replicate), split along a tensor dimension (Shard, StridedShard,
// RaggedShard, ZigzagShard) or as unreduced contributions (Partial). Placements are regular values: comparable,
// hashable, printable and parsed back.
#pragma once

#include <c10/util/ArrayRef.h>

#include <cstddef>
#include <cstdint>
#include <iosfwd>
#include <string>
#include <string_view>
#include <vector>

#include "dtensor/export.h"

namespace dtensor {

// How values of several ranks are combined.
enum class ReduceOp : std::uint8_t { sum, avg, max, min, product };

// As it is parsed and printed: "sum".
DTENSOR_API const char* to_string(ReduceOp op);

// What an axis of a mesh does to a tensor: nothing, split one of its dimensions, or hold shares of its values.
class DTENSOR_API Placement {
 public:
  // Of a placement.
  enum class Kind : std::uint8_t { replicate, shard, strided_shard, ragged_shard, zigzag_shard, partial };

  constexpr Placement() = default;

  // What the functions below make.
  static constexpr Placement replicate() { return {}; }
  static Placement shard(std::int64_t dim);
  static Placement strided_shard(std::int64_t dim, std::int64_t split_factor);
  static Placement ragged_shard(std::int64_t dim, c10::IntArrayRef sizes);
  static Placement zigzag_shard(std::int64_t dim, std::int64_t split_factor = 1);
  static constexpr Placement partial(ReduceOp op) {
    Placement p;
    p.kind_ = Kind::partial;
    p.op_ = op;
    return p;
  }

  // Which of them it is.
  constexpr Kind kind() const { return kind_; }
  // Whether it is one of them; `dim`, `op`: with that dimension, that operation.
  constexpr bool is_replicate() const { return kind_ == Kind::replicate; }
  // Shard, StridedShard, RaggedShard and ZigzagShard alike.
  constexpr bool is_shard() const { return kind_ >= Kind::shard && kind_ <= Kind::zigzag_shard; }
  constexpr bool is_shard(std::int64_t dim) const { return is_shard() && dim_ == dim; }
  constexpr bool is_strided() const { return kind_ == Kind::strided_shard; }
  constexpr bool is_ragged() const { return kind_ == Kind::ragged_shard; }
  constexpr bool is_zigzag() const { return kind_ == Kind::zigzag_shard; }
  constexpr bool is_partial() const { return kind_ == Kind::partial; }
  constexpr bool is_partial(ReduceOp op) const { return is_partial() && op_ == op; }

  // The sharded tensor dimension; -1 unless is_shard(). Negative dimensions are normalised by whoever knows the rank of
  // the tensor (distribute_tensor, from_local, redistribute).
  constexpr std::int64_t dim() const { return dim_; }
  // StridedShard: into how many pieces the mesh axes to the right split the dimension first; ZigzagShard: how many
  // pieces of the dimension are split alike; else 1.
  constexpr std::int64_t split_factor() const { return split_factor_; }
  // RaggedShard only: how many elements of the dimension each rank of the axis holds; else empty. Valid for ever.
  c10::IntArrayRef ragged_sizes() const;
  // Partial only; sum otherwise.
  constexpr ReduceOp reduce_op() const { return op_; }

  // A *storage* shard (printed `S(0)*`): the tensor is stored split on this axis, but operators that compute with it
  // see Replicate, so it is gathered where it is used (fully sharded parameters). In-place and list operators, views
  // and casts see the shard itself.
  constexpr bool is_storage() const { return storage_; }
  Placement as_storage(bool storage = true) const;

  // The same of another dimension.
  Placement with_dim(std::int64_t dim) const;

  friend constexpr bool operator==(const Placement&, const Placement&) = default;
  // Equal ones have equal hashes; `str`: as parse_placement() reads it.
  std::size_t hash() const;
  std::string str() const;

 private:
  Kind kind_ = Kind::replicate;
  ReduceOp op_ = ReduceOp::sum;
  bool storage_ = false;
  std::int32_t dim_ = -1;
  std::int32_t split_factor_ = 1;
  std::int32_t ragged_ = 0;  // number of the list of sizes; equal lists have one number
};

// One placement per mesh dimension, in the order of the mesh's dimensions.
using Placements = std::vector<Placement>;

// The whole tensor on every rank of the axis.
inline Placement Replicate() { return {}; }
// Rank r of P holds the r-th chunk of ceil(n / P) elements of the dimension; the last ones may be short or empty.
inline Placement Shard(std::int64_t dim) { return Placement::shard(dim); }
// What FSDP over TP makes of one tensor dimension: the mesh axes to the right, whose sizes multiply to split_factor,
// split it first; this axis then splits each of those pieces.
inline Placement StridedShard(std::int64_t dim, std::int64_t split_factor) {
  return Placement::strided_shard(dim, split_factor);
}
// Rank r of the axis holds sizes[r] elements of the dimension, none is fine; they add up to its size. It is the
// outermost split of the dimension, whatever its axis: other axes cut what it leaves to each rank. For storage whose
// boundaries mean something (quantisation blocks, rows of unequal work), made once: a process keeps every list that it
// ever saw.
inline Placement RaggedShard(std::int64_t dim, c10::IntArrayRef sizes) { return Placement::ragged_shard(dim, sizes); }
// Head-tail pairs: of the 2 P chunks of the dimension, rank r of an axis of P ranks holds chunks r and 2 P - 1 - r, in
// this order, so that what is to be done for a row and grows with its index (causal attention) is shared out evenly. Of
// n elements the first n mod 2 P chunks have one more than the others; with fewer than 2 P elements some are empty.
// Only who holds an element is different from Shard: the order of the elements of the whole tensor stays. With a split
// factor f the dimension is cut into f chunks first, each of which is split so: what flattening [f, n] with Z(1) makes.
inline Placement ZigzagShard(std::int64_t dim, std::int64_t split_factor = 1) {
  return Placement::zigzag_shard(dim, split_factor);
}
// Chunks of whole blocks: a dimension of `size` elements over `ranks` ranks, no boundary within `block` consecutive
// ones.
DTENSOR_API Placement BlockShard(std::int64_t dim, std::int64_t size, std::int64_t block, std::int64_t ranks);
inline Placement Partial(ReduceOp op = ReduceOp::sum) { return Placement::partial(op); }

// `R`, `S(0)`, `SS(0, 2)`, `RS(0, 3 0 5)`, `Z(0)`, `Z(0, 2)`, `P(sum)`, with a trailing `*` for storage; a sequence
// prints as `[R, S(0)]`.
DTENSOR_API std::ostream& operator<<(std::ostream& out, const Placement& placement);
DTENSOR_API std::string to_string(const Placements& placements);
// Inverse of str() and to_string(); throws c10::Error with the offending text.
DTENSOR_API Placement parse_placement(std::string_view text);
DTENSOR_API Placements parse_placements(std::string_view text);

}  // namespace dtensor

template <>
struct std::hash<dtensor::Placement> {
  std::size_t operator()(const dtensor::Placement& p) const noexcept { return p.hash(); }
};
