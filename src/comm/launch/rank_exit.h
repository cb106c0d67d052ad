// What other rooms must forget when a thread rank ends: its thread goes back to a pool, but caches that it filled would
// keep the world's communicators alive.
#pragma once

#include "dtensor/export.h"

namespace dtensor {

using RankExitHook = void (*)();

// Runs on each rank's own thread after its function has returned or thrown. Thread-safe; hooks stay for the program.
void add_rank_exit_hook(RankExitHook hook);
DTENSOR_API void run_rank_exit_hooks();

}  // namespace dtensor
