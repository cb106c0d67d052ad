// The choices of one mesh axis: all Replicate, one sharded factor, or one group of Partial operands.
#pragma once

#include "sharding_prop/strategies/strategy.h"

namespace dtensor {

// All choices in order of preference among equal costs, including those that no placement can express.
std::vector<AxisChoice> choices_on(const Problem& p, std::size_t axis);

// Whether the last choice of `chosen`, a factor, may be sharded given the choices before it.
bool may_shard(const Problem& p, const Assignment& chosen);

// The preferred shard of result 0 on the axis; null if there is none.
const Placement* preferred_output(const Problem& p, std::size_t axis);

}  // namespace dtensor
