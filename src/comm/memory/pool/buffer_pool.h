// Tensors from the pool (dtensor/comm.h).
#pragma once

#include <ATen/core/Tensor.h>

#include "dtensor/comm.h"

namespace dtensor {

// An uninitialized contiguous CPU tensor from the pool. Bypasses the dispatcher, so MeshScope and dispatch modes do
// not apply. Otherwise an ordinary tensor: it may be resized, and its memory returns to the pool when it is freed on
// any thread.
at::Tensor pooled_empty(at::IntArrayRef sizes, at::ScalarType dtype);

// Divides the default limit by the number of this job's processes on this host. No effect after set_memory_pool_limit.
void share_pool_limit(int processes);

}  // namespace dtensor
