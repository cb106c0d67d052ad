// List operators with ATen's sequential semantics: a position that reads a tensor sees the writes of earlier positions.
#pragma once

#include "ops/cache/cached_call.h"
#include "ops/cache/call_operands.h"

namespace dtensor {

// Whether a call that redistributes operands writes a tensor that also occurs in another position. That position would
// use a copy made before the write. The result is equal on all ranks, in the mesh or not.
bool positions_depend_on_each_other(const OpEntry& entry, const CachedCall& call, const CallOperands& operands,
                                    c10::ArrayRef<c10::IValue> args);
// Calls the operator once for each position.
void run_positions_sequentially(const OpEntry& entry, torch::jit::Stack& stack);

// The number of positions of a call: the length of its longest list.
std::size_t list_argument_length(c10::ArrayRef<c10::IValue> args);
// Whether an argument is a tensor with one number for each of `length` positions.
bool has_value_per_position(const OpEntry& entry, std::size_t arg, const c10::IValue& value, std::size_t length);

}  // namespace dtensor
