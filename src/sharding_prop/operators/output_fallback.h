// Infers results from the rule, for operators that have no meta kernel in LibTorch.
#pragma once

#include <ATen/core/Tensor.h>

#include "sharding_prop/rule_book/resolve.h"

namespace dtensor {

at::Tensor meta_tensor(const Operand& operand);

// Fills call.outputs. Elementwise operators use TensorIterator; others use the sizes of the factors in the rule's
// results and contiguous strides. Returns false if the rule does not determine them.
bool outputs_from_rule(OpCall& call);

// Results of out= get the dtypes of the out tensors, and their strides if the sizes are equal.
void apply_out_operands(OpCall& call);

}  // namespace dtensor
