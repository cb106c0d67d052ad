// The miss path: from a call to a CachedCall.
#pragma once

#include <memory>

#include "ops/cache/cached_call.h"
#include "sharding_prop/propagate.h"

namespace dtensor {

// Never communicates: ranks miss at different calls. `args` are the call's arguments, DTensors included.
std::unique_ptr<CachedCall> compile_call(const OpEntry& entry, c10::ArrayRef<c10::IValue> args, const CallView& view);

// The call as the propagation sees it, outputs inferred.
OpCall describe_call(const OpEntry& entry, c10::ArrayRef<c10::IValue> args, const CallView& view);

}  // namespace dtensor
