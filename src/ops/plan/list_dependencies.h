// Operators on lists work through their positions one after the other: one that reads or writes what an earlier one
// wrote sees that.
#pragma once

#include "ops/cache/cached_call.h"
#include "ops/cache/call_view.h"

namespace dtensor {

// Whether a tensor that the call writes stands in another position too, in a call that moves operands: positions would
// read and write copies that were made before the first of them ran. The same on every rank, in the mesh or not.
bool positions_depend_on_each_other(const OpEntry& entry, const CachedCall& call, const CallView& view,
                                    c10::ArrayRef<c10::IValue> args);
// One call of the operator for each position.
void run_positions_sequentially(const OpEntry& entry, torch::jit::Stack& stack);

// How many positions a call has: the length of its longest list.
std::size_t list_argument_length(c10::ArrayRef<c10::IValue> args);
// Whether an argument gives each of `length` positions a number of its own, in one tensor.
bool has_value_per_position(const OpEntry& entry, std::size_t arg, const c10::IValue& value, std::size_t length);

}  // namespace dtensor
