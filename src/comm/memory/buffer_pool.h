// Memory for the results of collectives: large blocks are kept when they are freed and handed out again, because the
// page faults of a fresh 64 MB block cost several times what filling it does.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>

namespace dtensor {

// An uninitialised contiguous CPU tensor from the pool. Does not go through the dispatcher, so that a MeshScope or a
// mode does not see it. Ordinary in every other way: it may be resized, and its memory returns to the pool when it
// dies, on whatever thread that happens.
at::Tensor pooled_empty(at::IntArrayRef sizes, at::ScalarType dtype);

struct PoolStats {
  std::size_t cached_bytes = 0;  // free, in the pool
  std::size_t hits = 0;          // large requests served from the pool
  std::size_t misses = 0;        // large requests that went to the system
};
PoolStats pool_stats();

// How many bytes the pool keeps at most when nobody uses them (default: 1/8 of the machine's memory, at most 4 GiB).
void set_pool_limit(std::size_t bytes);
// Gives all free blocks back to the system.
void trim_pool();

}  // namespace dtensor
