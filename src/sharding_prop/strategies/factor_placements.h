// Converts sharded factors to placements of one tensor, for simple and compound dimensions. In a compound dimension, a
// minor factor gives a strided shard.
#pragma once

#include <optional>

#include "sharding_prop/strategies/strategy.h"

namespace dtensor {

// Placement on mesh axis `axis` of a tensor that has the factor chosen there; nothing if it does not have it. Sets
// `valid` to false if no placement expresses it.
std::optional<Placement> shard_of_factor(const BoundRule& p, const TensorState& tensor, const Assignment& chosen,
                                         std::size_t axis, bool& valid);

// The inverse: a shard of a dimension as a split of one of its factors, which is dimension 0 of the result. Nothing if
// that is no split of this factor. Strided and ragged shards split the most major factor. A more minor factor can only
// have a zigzag split, whose pieces are the more major factors.
std::optional<Placement> split_of_factor(const BoundRule& p, const Rule::DimFactors& dim, int factor,
                                         const Placement& shard);
// For error messages: "", " in 2 pieces", " as Z(0)".
std::string describe_split(const Placement& split);

// Whether `placements` of the decided axes give each rank exactly the elements that the factors define. Only compound
// dimensions that several axes shard need this check.
bool placements_fit_factors(const BoundRule& p, const TensorState& tensor, at::IntArrayRef sizes,
                            const Assignment& chosen, const Placements& placements);

// Size of the smallest part of the factor on any rank.
std::int64_t smallest_part(const BoundRule& p, int factor, const Assignment& chosen);
// Whether every boundary between the factor's parts is a multiple of its block.
bool is_cut_at_blocks(const BoundRule& p, int factor, const Assignment& chosen);
// Number of ranks over which the factor is split.
std::int64_t parts_of_factor(const BoundRule& p, int factor, const Assignment& chosen, std::size_t axes);

}  // namespace dtensor
