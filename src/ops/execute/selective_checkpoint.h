// Recording and replay of operator results for SelectiveCheckpointCache.
#pragma once

#include "internal/selective_checkpoint_cache.h"
#include "ops/dispatch/operator_entry.h"

namespace dtensor {

// Whether this thread records or replays.
bool is_caching_results();

// Replaces the arguments on the stack by the kept results of this call. Returns false if the operator has to run.
bool replay_cached_result(const OpEntry& entry, torch::jit::Stack& stack);
// Records the results, which are on top of the stack.
void cache_result(const OpEntry& entry, const torch::jit::Stack& stack);

}  // namespace dtensor
