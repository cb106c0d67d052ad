// The engine's side of SelectiveCheckpointCache.
#pragma once

#include "internal/selective_checkpoint_cache.h"
#include "ops/dispatch/operator_entry.h"

namespace dtensor {

// Whether this thread records or replays.
bool is_caching_results();

// Replaces the arguments on the stack by the kept results of this call; false: compute them.
bool replay_cached_result(const OpEntry& entry, torch::jit::Stack& stack);
// The results are on top of the stack.
void cache_result(const OpEntry& entry, const torch::jit::Stack& stack);

}  // namespace dtensor
