// Operators that the engine handles as a whole, because their arguments speak of memory (strides and offsets) or of the
// tensor object itself.
#pragma once

#include "ops/op_entry.h"

namespace dtensor {

SpecialKernel find_special(const c10::OperatorName& name);

void as_strided_special(const OpEntry& entry, torch::jit::Stack& stack);
void resize_special(const OpEntry& entry, torch::jit::Stack& stack);
void functional_step_special(const OpEntry& entry, torch::jit::Stack& stack);

}  // namespace dtensor
