// Plain tensors among DTensors count as Replicate, which is only right if every rank gives the same values.
#pragma once

#include "ops/cache/call_view.h"

namespace dtensor {

// Compares the content of each plain operand of dimension >= 1 across the ranks of the mesh: in checked mode at every
// call, else at those that the mesh's count of such calls picks (docs/design.md, "Plain operands"). A difference, and
// any such operand under Strict, is an error that names the operand. To be called once for every such call; collective.
void check_regular_operands(const OpEntry& entry, c10::ArrayRef<c10::IValue> args, const CallView& view);

// Whether this call is one of those that all ranks look at more closely: the first of each kind, and few of many.
// Counts.
bool should_sample_call(const OpEntry& entry, const CallView& view);

}  // namespace dtensor
