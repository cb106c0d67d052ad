// Runs a CachedCall on a stack of DTensors.
#pragma once

#include "ops/cache/cached_call.h"

namespace dtensor {

// Replaces the arguments, the last entry.args.size() values of `stack`, by the results.
void execute_call(const OpEntry& entry, const CachedCall& call, const CallOperands& operands, torch::jit::Stack& stack);

}  // namespace dtensor
