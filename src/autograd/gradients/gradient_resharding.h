// If an operator moved an operand from one shard to another, moves the gradient back: the adjoint of a redistribution
// that is not in autograd's graph.
#pragma once

#include "tensor/impl/dtensor_impl.h"

namespace dtensor {

// Whether both specs shard an axis of several ranks, but differently.
bool shards_differently(const TensorSpec& from, const TensorSpec& to);

// Installs a hook that redistributes the summed gradient of `operand` to the operand's current shards, on axes where
// the gradient has other shards. Replicate and Partial gradients are not changed. For results of differentiable
// operators; leaves have a gradient pipeline. Does nothing if no gradient is required.
void reshard_gradient_to_operand(const at::Tensor& operand);

}  // namespace dtensor
