// Checks of regular tensors among DTensors. They count as Replicate, so every rank must pass the same values.
#pragma once

#include "ops/cache/call_operands.h"

namespace dtensor {

// Compares the values of regular operands of dimension >= 1 across the ranks of the mesh: at every call in checked
// mode, otherwise at sampled calls (docs/design.md). Throws an error that names the operand if values differ, and under
// Strict for any such operand. Collective; call it exactly once per operator call with regular operands.
void check_regular_operands(const OpEntry& entry, c10::ArrayRef<c10::IValue> args, const CallOperands& operands);

// Counts the call, and returns whether all ranks sample it for checks: the first of each kind, and a few later ones.
bool should_sample_call(const OpEntry& entry, const CallOperands& operands);

}  // namespace dtensor
