// How one mesh dimension distributes a tensor: full on each rank (Replicate), split along a tensor dimension (Shard,
// StridedShard, RaggedShard, ZigzagShard) or as unreduced contributions (Partial). Placements are regular values:
// comparable, hashable, printable and parsable.
#pragma once

#include <c10/util/ArrayRef.h>

#include <cstddef>
#include <cstdint>
#include <iosfwd>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "dtensor/export.h"

namespace dtensor {

// How values of several ranks are combined.
enum class ReduceOp : std::uint8_t { sum, avg, max, min, product };

// The name for parsing and printing: "sum".
DTENSOR_API const char* to_string(ReduceOp op);

// What a mesh axis does to a tensor: nothing, split one of its dimensions, or store one summand of its values per rank.
class DTENSOR_API Placement {
 public:
  // The kind of a placement. Kinds of shards are consecutive, for is_shard().
  enum class Kind : std::uint8_t { replicate, shard, strided_shard, ragged_shard, zigzag_shard, partial };

  Placement() = default;

  // Used by the functions below.
  static Placement replicate() { return {}; }
  static Placement shard(std::int64_t dim);
  static Placement strided_shard(std::int64_t dim, std::int64_t split_factor);
  static Placement ragged_shard(std::int64_t dim, c10::IntArrayRef sizes);
  static Placement zigzag_shard(std::int64_t dim, std::int64_t split_factor = 1);
  static Placement partial(ReduceOp op) {
    Placement p;
    p.kind_ = Kind::partial;
    p.op_ = op;
    return p;
  }

  // The kind of this placement.
  Kind kind() const { return kind_; }
  // Whether it has this kind and, if given, this dimension or operation.
  bool is_replicate() const { return kind_ == Kind::replicate; }
  // True for Shard, StridedShard, RaggedShard and ZigzagShard.
  bool is_shard() const { return kind_ >= Kind::shard && kind_ <= Kind::zigzag_shard; }
  bool is_shard(std::int64_t dim) const { return is_shard() && dim_ == dim; }
  bool is_strided() const { return kind_ == Kind::strided_shard; }
  bool is_ragged() const { return kind_ == Kind::ragged_shard; }
  bool is_zigzag() const { return kind_ == Kind::zigzag_shard; }
  bool is_partial() const { return kind_ == Kind::partial; }
  bool is_partial(ReduceOp op) const { return is_partial() && op_ == op; }

  // The sharded tensor dimension; -1 unless is_shard(). Functions that receive the tensor (distribute_tensor,
  // from_local, redistribute) normalize negative dimensions.
  std::int64_t dim() const { return dim_; }
  // StridedShard: into how many pieces the mesh axes to the right split the dimension first. ZigzagShard: into how many
  // pieces the dimension is cut before each is split. Otherwise 1.
  std::int64_t split_factor() const { return split_factor_; }
  // RaggedShard: how many elements of the dimension each rank of the axis stores; otherwise empty. Valid as long as
  // this placement or a copy of it.
  c10::IntArrayRef ragged_sizes() const { return ragged_ ? c10::IntArrayRef(*ragged_) : c10::IntArrayRef(); }
  // The operation of a Partial; otherwise sum.
  ReduceOp reduce_op() const { return op_; }

  // A *storage* shard (printed `S(0)*`), used for fully sharded parameters: the tensor is stored split on this axis.
  // Operators that compute with it treat it as Replicate, so it is gathered before use. In-place and list operators,
  // views and casts operate on the shard itself.
  bool is_storage() const { return storage_; }
  Placement as_storage(bool storage = true) const;

  // The same placement with another dimension.
  Placement with_dim(std::int64_t dim) const;

  friend bool operator==(const Placement& a, const Placement& b) {
    return a.kind_ == b.kind_ && a.op_ == b.op_ && a.storage_ == b.storage_ && a.dim_ == b.dim_ &&
           a.split_factor_ == b.split_factor_ && (a.ragged_ == b.ragged_ || a.ragged_sizes() == b.ragged_sizes());
  }
  // Equal placements have equal hashes; `str` returns the format that parse_placement() reads.
  std::size_t hash() const;
  std::string str() const;

 private:
  Kind kind_ = Kind::replicate;
  ReduceOp op_ = ReduceOp::sum;
  bool storage_ = false;
  std::int32_t dim_ = -1;
  std::int32_t split_factor_ = 1;
  std::shared_ptr<const std::vector<std::int64_t>> ragged_;  // shared by copies; null unless is_ragged()
};

// One placement per mesh dimension, in the order of the mesh's dimensions.
using Placements = std::vector<Placement>;

// The full tensor on every rank of the axis.
inline Placement Replicate() { return {}; }
// Rank r of P stores the r-th chunk of ceil(n / P) elements of the dimension; the last chunks may be short or empty.
inline Placement Shard(std::int64_t dim) { return Placement::shard(dim); }
// The placement of FSDP over TP on one tensor dimension: the mesh axes to the right, whose sizes multiply to
// split_factor, split it first; this axis then splits each of those pieces.
inline Placement StridedShard(std::int64_t dim, std::int64_t split_factor) {
  return Placement::strided_shard(dim, split_factor);
}
// Rank r of the axis stores sizes[r] elements of the dimension, possibly none; the sizes add up to that of the
// dimension. It is the outermost split of the dimension, whatever its axis: other axes split each rank's part. For
// boundaries with a meaning (quantization blocks, rows of unequal work).
inline Placement RaggedShard(std::int64_t dim, c10::IntArrayRef sizes) { return Placement::ragged_shard(dim, sizes); }
// Head-tail pairs: of the 2 P chunks of the dimension, rank r of an axis of P ranks stores chunks r and 2 P - 1 - r, in
// this order. This balances work that grows with the row index (causal attention). Of n elements the first n mod 2 P
// chunks have one more than the others; with fewer than 2 P elements some are empty. The order of elements in the full
// tensor is unchanged. With a split factor f the dimension is cut into f chunks first, and each is split this way: the
// result of flattening [f, n] with Z(1).
inline Placement ZigzagShard(std::int64_t dim, std::int64_t split_factor = 1) {
  return Placement::zigzag_shard(dim, split_factor);
}
// A sharding in multiples of `block`: splits a dimension of `size` elements over `ranks` ranks without a boundary
// inside a block of `block` consecutive elements.
DTENSOR_API Placement BlockShard(std::int64_t dim, std::int64_t size, std::int64_t block, std::int64_t ranks);
inline Placement Partial(ReduceOp op = ReduceOp::sum) { return Placement::partial(op); }

// Prints `R`, `S(0)`, `SS(0, 2)`, `RS(0, 3 0 5)`, `Z(0)`, `Z(0, 2)`, `P(sum)`, with a trailing `*` for storage shards;
// a sequence prints as `[R, S(0)]`.
DTENSOR_API std::ostream& operator<<(std::ostream& out, const Placement& placement);
DTENSOR_API std::string to_string(const Placements& placements);
// Inverses of str() and to_string(); throw c10::Error with the invalid text.
DTENSOR_API Placement parse_placement(std::string_view text);
DTENSOR_API Placements parse_placements(std::string_view text);

}  // namespace dtensor

template <>
struct std::hash<dtensor::Placement> {
  std::size_t operator()(const dtensor::Placement& p) const noexcept { return p.hash(); }
};
