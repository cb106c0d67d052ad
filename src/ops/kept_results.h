// The engine's side of KeptResults.
#pragma once

#include "dtensor/kept_results.h"
#include "ops/op_entry.h"

namespace dtensor {

// Whether this thread records or replays.
bool keeping_results();

// Replaces the arguments on the stack by the kept results of this call; false: compute them.
bool take_kept_result(const OpEntry& entry, torch::jit::Stack& stack);
// The results are on top of the stack.
void keep_result(const OpEntry& entry, const torch::jit::Stack& stack);

}  // namespace dtensor
