// The choices of one mesh axis: all Replicate, one sharded factor, or one group of Partial operands.
#pragma once

#include "sharding_prop/strategies/bound_rule.h"

namespace dtensor {

struct AxisChoice {
  enum class Kind : std::uint8_t { replicate, factor, group };
  Kind kind = Kind::replicate;
  int index = -1;               // of the factor or group
  Placement split = Shard(0);   // for factors: the split (chunks, strided, ragged), with the factor as dimension 0
  ReduceOp op = ReduceOp::sum;  // for groups
  friend bool operator==(const AxisChoice&, const AxisChoice&) = default;
};

// One entry per mesh axis, from the left; shorter while axes are undecided.
using Assignment = std::vector<AxisChoice>;

// All choices in order of preference among equal costs, including those that no placement can express.
std::vector<AxisChoice> choices_on(const BoundRule& p, std::size_t axis);

// Whether the last choice of `chosen`, a factor, may be sharded given the choices before it.
bool may_shard(const BoundRule& p, const Assignment& chosen);

// The preferred shard of result 0 on the axis; null if there is none.
const Placement* preferred_output(const BoundRule& p, std::size_t axis);

}  // namespace dtensor
