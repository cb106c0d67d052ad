// Where the gradient goes that an operator computes within a backward pass. With it an operator that would compute the
// gradient of a full table computes only the rows of the parameter's shard.
#pragma once

#include <c10/util/SmallVector.h>

#include "placement/spec.h"

namespace dtensor {

// Specs of the leaves behind the edges of the running autograd node, through casts and transposes. Those that are not
// known, or no DTensors, are left out; empty where no node runs.
c10::SmallVector<SpecPtr, 2> gradient_leaf_specs();

}  // namespace dtensor
