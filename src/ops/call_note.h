// A call in words, and as a hash that is the same on every rank that makes the same call: what Checked compares.
#pragma once

#include "ops/cached_call.h"

namespace dtensor {

// Adds the call to its mesh's history (comm/record/call_history.h). `args`: as on the stack, before anything is
// replaced.
void note_checked_call(const OpEntry& entry, c10::ArrayRef<c10::IValue> args, const CallView& view,
                       const CachedCall& call);
// Counts its results, by which later calls are told apart.
void count_results(const OpEntry& entry, const torch::jit::Stack& stack);
// For an operator that a special kernel takes apart.
void note_special_call(const OpEntry& entry, c10::ArrayRef<c10::IValue> args);

}  // namespace dtensor
