// The part of c10's CUDA allocator that src/comm/nccl may use, for tests on a LibTorch without CUDA.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/cuda/CUDAStream.h>

namespace c10::cuda::CUDACachingAllocator {

// Delays the reuse of the memory until the work that `stream` holds when the memory is freed is complete.
void recordStream(const DataPtr& memory, CUDAStream stream);

}  // namespace c10::cuda::CUDACachingAllocator
