// Placement values: construction with checks, hashing and the text form. The parser is in parse.cpp.
#include "dtensor/placement.h"

#include <c10/util/Exception.h>
#include <c10/util/hash.h>

#include <algorithm>
#include <limits>
#include <ostream>

namespace dtensor {
namespace {

std::int32_t checked_dim(std::int64_t dim) {
  TORCH_CHECK(dim >= std::numeric_limits<std::int32_t>::min() && dim <= std::numeric_limits<std::int32_t>::max(),
              "a placement's tensor dimension is out of range: ", dim);
  return static_cast<std::int32_t>(dim);
}

}  // namespace

const char* to_string(ReduceOp op) {
  switch (op) {
    case ReduceOp::sum:
      return "sum";
    case ReduceOp::avg:
      return "avg";
    case ReduceOp::max:
      return "max";
    case ReduceOp::min:
      return "min";
    case ReduceOp::product:
      return "product";
  }
  return "?";
}

Placement Placement::shard(std::int64_t dim) {
  Placement p;
  p.kind_ = Kind::shard;
  p.dim_ = checked_dim(dim);
  return p;
}

Placement Placement::strided_shard(std::int64_t dim, std::int64_t split_factor) {
  TORCH_CHECK(split_factor >= 1 && split_factor <= std::numeric_limits<std::int32_t>::max(), "StridedShard(", dim, ", ",
              split_factor, "): expected a split factor in [1, 2^31)");
  Placement p = shard(dim);
  p.kind_ = Kind::strided_shard;
  p.split_factor_ = static_cast<std::int32_t>(split_factor);
  return p;
}

Placement Placement::ragged_shard(std::int64_t dim, c10::IntArrayRef sizes) {
  TORCH_CHECK(!sizes.empty() && std::all_of(sizes.begin(), sizes.end(), [](auto n) { return n >= 0; }),
              "RaggedShard: expected a non-negative number of elements for each rank, got ", sizes);
  Placement p = shard(dim);
  p.kind_ = Kind::ragged_shard;
  p.ragged_ = std::make_shared<const std::vector<std::int64_t>>(sizes.vec());
  return p;
}

Placement Placement::zigzag_shard(std::int64_t dim, std::int64_t split_factor) {
  TORCH_CHECK(split_factor >= 1 && split_factor <= std::numeric_limits<std::int32_t>::max(), "ZigzagShard(", dim, ", ",
              split_factor, "): expected a split factor in [1, 2^31)");
  Placement p = shard(dim);
  p.kind_ = Kind::zigzag_shard;
  p.split_factor_ = static_cast<std::int32_t>(split_factor);
  return p;
}

// Only shards have different storage and compute placements, so the flag stays off elsewhere and equality is simple.
Placement Placement::as_storage(bool storage) const {
  Placement p = *this;
  p.storage_ = storage && is_shard();
  return p;
}

Placement Placement::with_dim(std::int64_t dim) const {
  TORCH_CHECK(is_shard(), "expected a shard, which has a tensor dimension, got ", str());
  Placement p = *this;
  p.dim_ = checked_dim(dim);
  return p;
}

std::size_t Placement::hash() const {
  const auto small = static_cast<std::size_t>(kind_) | static_cast<std::size_t>(op_) << 4 |
                     static_cast<std::size_t>(storage_) << 8 | static_cast<std::size_t>(split_factor_) << 16;
  std::size_t hash = c10::hash_combine(small, static_cast<std::size_t>(dim_));
  for (const std::int64_t size : ragged_sizes()) hash = c10::hash_combine(hash, static_cast<std::size_t>(size));
  return hash;
}

std::string Placement::str() const {
  const char* star = storage_ ? "*" : "";
  switch (kind_) {
    case Kind::replicate:
      return "R";
    case Kind::shard:
      return "S(" + std::to_string(dim_) + ")" + star;
    case Kind::strided_shard:
      return "SS(" + std::to_string(dim_) + ", " + std::to_string(split_factor_) + ")" + star;
    case Kind::ragged_shard:
      return "RS(" + std::to_string(dim_) + ", " + c10::str(c10::Join(" ", ragged_sizes())) + ")" + star;
    case Kind::zigzag_shard:
      return "Z(" + std::to_string(dim_) + (split_factor_ > 1 ? ", " + std::to_string(split_factor_) : "") + ")" + star;
    case Kind::partial:
      return std::string("P(") + to_string(op_) + ")";
  }
  return "?";
}

Placement BlockShard(std::int64_t dim, std::int64_t size, std::int64_t block, std::int64_t ranks) {
  TORCH_CHECK(size >= 0 && block >= 1 && ranks >= 1, "BlockShard(dim ", dim, ", size ", size, ", block ", block,
              ", ranks ", ranks, "): expected size >= 0, block >= 1 and ranks >= 1");
  const std::int64_t blocks = (size + block - 1) / block, most = (blocks + ranks - 1) / ranks * block;
  std::vector<std::int64_t> sizes;
  for (std::int64_t r = 0; r < ranks; ++r) sizes.push_back(std::min(size, most * (r + 1)) - std::min(size, most * r));
  return RaggedShard(dim, sizes);
}

std::ostream& operator<<(std::ostream& out, const Placement& placement) { return out << placement.str(); }

std::string to_string(const Placements& placements) {
  std::string text = "[";
  for (const Placement& p : placements) {
    text += (text.size() > 1 ? ", " : "") + p.str();
  }
  return text + "]";
}

}  // namespace dtensor
