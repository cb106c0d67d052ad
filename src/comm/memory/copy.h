// Copies between CPU tensors of equal sizes and dtype.
#pragma once

#include <ATen/core/Tensor.h>

namespace dtensor {

// to[...] = from[...] with any strides. Not recorded by autograd. The tensors do not overlap, unless they are the same
// view.
void copy_tensor(const at::Tensor& to, const at::Tensor& from);

// From this size on, writes bypass the cache: they would evict what the caller needs next, and every written line
// would be read first.
constexpr std::size_t kStreamBytes = std::size_t{4} << 20;

// Like memcpy; a large copy bypasses the cache.
void copy_bytes(void* to, const void* from, std::size_t bytes);

}  // namespace dtensor
