// What an operator had moved from one shard to another, its gradient moves back: the adjoint of a move that no graph
// shows.
#pragma once

#include "tensor/impl/dtensor_impl.h"

namespace dtensor {

// Whether an axis of several ranks that shards `from` shards `to` otherwise.
bool shards_differently(const TensorSpec& from, const TensorSpec& to);

// The gradient of `operand`, once it is summed up, is brought to the shards that `operand` has now, on axes where it
// comes as other shards; those that come whole or unreduced stay so. For results of differentiable operators: leaves
// bring theirs home by themselves. Nothing where no gradient is asked for.
void reshard_gradient_to_operand(const at::Tensor& operand);

}  // namespace dtensor
