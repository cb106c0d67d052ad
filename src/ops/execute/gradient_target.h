// The leaves that receive the gradient which an operator computes in backward. With them, operators such as an
// embedding's backward compute only the rows of the parameter's shard.
#pragma once

#include <c10/util/SmallVector.h>

#include "placement/spec.h"

namespace dtensor {

// Specs of the leaves behind the edges of the current autograd node, through casts and transposes. Leaves that are not
// found or are not DTensors are omitted. Empty outside backward.
c10::SmallVector<SpecPtr, 2> gradient_leaf_specs();

}  // namespace dtensor
