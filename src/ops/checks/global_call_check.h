// Argument errors that the local call would raise on some ranks only.
#pragma once

#include "ops/cache/cached_call.h"

namespace dtensor {

// Throws the ATen operator's error for a call with invalid arguments, on every rank. Local calls check local sizes
// only: an empty or shorter shard may pass where others fail, and a local kernel may accept dtypes that the operator
// rejects. For such calls, if small, the operator runs on global sizes filled with zeros, then ones. Errors of larger
// calls are raised by the ranks whose shards fail, and reported to the others.
void validate_full_call(const OpEntry& entry, c10::ArrayRef<c10::IValue> args, const CachedCall& call);

}  // namespace dtensor
