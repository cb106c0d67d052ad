// Tensors out of the pool (dtensor/comm.h).
#pragma once

#include <ATen/core/Tensor.h>

#include "dtensor/comm.h"

namespace dtensor {

// An uninitialised contiguous CPU tensor from the pool. Does not go through the dispatcher, so that a MeshScope or a
// mode does not see it. Ordinary in every other way: it may be resized, and its memory returns to the pool when it
// dies, on whatever thread that happens.
at::Tensor pooled_empty(at::IntArrayRef sizes, at::ScalarType dtype);

// So many processes of this job are on this host; each keeps its share alone. Not after set_memory_pool_limit.
void share_pool_limit(int processes);

}  // namespace dtensor
