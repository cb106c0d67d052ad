// Host memory for the results of collectives, which a process keeps when it is freed and hands out again: the page
// faults of a fresh block of 64 MB cost several times what filling it does.
#pragma once

#include <cstddef>

#include "dtensor/export.h"

namespace dtensor {

// Of this process, all of its thread ranks together.
struct MemoryPoolStats {
  std::size_t cached_bytes = 0;  // free, in the pool
  std::size_t limit_bytes = 0;   // of those, at most
  std::size_t hits = 0;          // requests of 64 KiB and more that it served
  std::size_t misses = 0;        // those that went to the system
};
DTENSOR_API MemoryPoolStats memory_pool_stats();  // as it is now

// How many bytes the pool keeps at most while nobody uses them; 0: none. Before it is called: 1/8 of what this process
// may have, at most 4 GiB, where processes of one job on one host share the host's memory alike and the limit of a
// container (cgroup) counts where it is lower.
DTENSOR_API void set_memory_pool_limit(std::size_t bytes);
// Gives what is free back to the system: before another library needs the memory, or after a phase that will not come
// again. What is in use stays.
DTENSOR_API void empty_memory_pool();

}  // namespace dtensor
