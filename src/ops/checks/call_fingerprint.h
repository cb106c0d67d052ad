// Call fingerprints: the text and a hash of a call, equal on every rank that makes the same call. Checked mode compares
// them.
#pragma once

#include "ops/cache/cached_call.h"

namespace dtensor {

// Adds the call to its mesh's history (comm/record/call_history.h). `args` are the arguments on the stack, before any
// is replaced.
void record_call_fingerprint(const OpEntry& entry, c10::ArrayRef<c10::IValue> args, const CallOperands& operands,
                             const CachedCall& call);
// Numbers the results, so that fingerprints distinguish later calls by the origin of their operands.
void count_call_results(const OpEntry& entry, const torch::jit::Stack& stack);
// record_call_fingerprint for an operator with a special kernel.
void record_special_call_fingerprint(const OpEntry& entry, c10::ArrayRef<c10::IValue> args);

}  // namespace dtensor
