// A call in words, and as a hash that is the same on every rank that makes the same call: what Checked compares.
#pragma once

#include "ops/cache/cached_call.h"

namespace dtensor {

// Adds the call to its mesh's history (comm/record/call_history.h). `args`: as on the stack, before anything is
// replaced.
void record_call_fingerprint(const OpEntry& entry, c10::ArrayRef<c10::IValue> args, const CallView& view,
                             const CachedCall& call);
// Counts its results, by which later calls are told apart.
void count_call_results(const OpEntry& entry, const torch::jit::Stack& stack);
// For an operator that a special kernel takes apart.
void record_special_call_fingerprint(const OpEntry& entry, c10::ArrayRef<c10::IValue> args);

}  // namespace dtensor
