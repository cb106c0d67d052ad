// Buffers for redistribution results.
#pragma once

#include <ATen/core/Tensor.h>

namespace dtensor {

// Uninitialized, contiguous, with the dtype and device of `like`; on the CPU from the buffer pool.
at::Tensor result_buffer(at::IntArrayRef sizes, const at::Tensor& like);
// A contiguous copy in such a buffer.
at::Tensor copied(const at::Tensor& tensor);

}  // namespace dtensor
