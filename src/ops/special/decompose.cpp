// Operators that LibTorch writes in terms of others: their parts have rules.
#include "ops/special/special.h"

namespace dtensor {

void decompose_special(const OpEntry& entry, torch::jit::Stack& stack) {
  entry.op.callBoxedForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd, stack);
}

}  // namespace dtensor
