// Runs a CachedCall on a stack of DTensors, leaving DTensors.
#pragma once

#include "ops/cache/cached_call.h"

namespace dtensor {

// The last entry.args.size() values of `stack` are the arguments; they are replaced by the results.
void execute_call(const OpEntry& entry, const CachedCall& call, const CallView& view, torch::jit::Stack& stack);

}  // namespace dtensor
