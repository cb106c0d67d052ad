// The choices that one mesh axis offers: all-Replicate, one sharded factor, or one group of Partial operands.
#pragma once

#include "sharding_prop/strategies/strategy.h"

namespace dtensor {

// All of them, in the order of preference among equals; those that no placement can express are among them.
std::vector<AxisChoice> choices_on(const Problem& p, std::size_t axis);

// Whether the last choice of `chosen`, a factor, may be sharded under the ones before it.
bool may_shard(const Problem& p, const Assignment& chosen);

// The shard in which result 0 is preferred on the axis; null where there is no preference.
const Placement* preferred_output(const Problem& p, std::size_t axis);

}  // namespace dtensor
