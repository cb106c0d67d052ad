// Results of operators that LibTorch gives no meta kernel, from their rule.
#pragma once

#include <ATen/core/Tensor.h>

#include "sharding_prop/rule_book/resolve.h"

namespace dtensor {

at::Tensor meta_tensor(const Operand& operand);

// Fills call.outputs: elementwise operators by TensorIterator, others by the sizes of the factors in the rule's
// results, contiguous. False where the rule does not tell.
bool outputs_from_rule(OpCall& call);

// Results of out= are in the types of the tensors that they are written to, and in their memory where they fit.
void apply_out_operands(OpCall& call);

}  // namespace dtensor
