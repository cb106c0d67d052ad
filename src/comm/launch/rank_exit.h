// Hooks that clear thread-local caches when a thread rank ends. The thread returns to a pool, so its caches would keep
// the world's communicators alive.
#pragma once

#include "dtensor/export.h"

namespace dtensor {

using RankExitHook = void (*)();

// Runs on each rank's own thread after its function has returned or thrown. Thread-safe; hooks are never removed.
void add_rank_exit_hook(RankExitHook hook);
DTENSOR_API void run_rank_exit_hooks();

}  // namespace dtensor
