// From sharded factors to placements of one tensor: simple dimensions, and compound ones, where a minor factor makes a
// strided shard.
#pragma once

#include <optional>

#include "sharding_prop/strategies/strategy.h"

namespace dtensor {

// Placement on mesh axis `axis` of a tensor that holds the factor chosen there; nothing if the tensor lacks it.
// Sets `valid` to false where no placement can say it.
std::optional<Placement> shard_of_factor(const Problem& p, const TensorState& tensor, const Assignment& chosen,
                                         std::size_t axis, bool& valid);

// A ragged shard of a dimension as a split of its most major factor, as if that were dimension 0; nothing where a
// boundary lies within an element of it.
std::optional<Placement> ragged_split(const Problem& p, const RuleDim& dim, const Placement& ragged);

// Whether `placements` of the decided axes give each rank just what the factors say. Only compound dimensions that
// several axes shard need the check.
bool placements_fit_factors(const Problem& p, const TensorState& tensor, at::IntArrayRef sizes,
                            const Assignment& chosen, const Placements& placements);

// Smallest part of the factor that a rank holds, under the axes that shard it.
std::int64_t smallest_part(const Problem& p, int factor, const Assignment& chosen);
// Ranks over which the factor is split.
std::int64_t parts_of_factor(const Problem& p, int factor, const Assignment& chosen, std::size_t axes);

}  // namespace dtensor
