// The miss path: from a call to a CachedCall.
#pragma once

#include <memory>

#include "ops/cache/cached_call.h"
#include "sharding_prop/propagate.h"

namespace dtensor {

// Compiles a call. It never communicates, because ranks have cache misses at different calls. `args` are the original
// arguments, with DTensors.
std::unique_ptr<CachedCall> compile_call(const OpEntry& entry, c10::ArrayRef<c10::IValue> args,
                                         const CallOperands& operands);

// The call as input of sharding propagation, with inferred output metadata.
OpCall describe_call(const OpEntry& entry, c10::ArrayRef<c10::IValue> args, const CallOperands& operands);

}  // namespace dtensor
