// Copies between CPU tensors of equal sizes and dtype.
#pragma once

#include <ATen/core/Tensor.h>

namespace dtensor {

// to[...] = from[...], any strides. Never recorded by autograd. The tensors do not overlap, unless they are the same
// view.
void copy_tensor(const at::Tensor& to, const at::Tensor& from);

// As memcpy; large copies bypass the cache, which would only evict what the caller needs next.
void copy_bytes(void* to, const void* from, std::size_t bytes);

}  // namespace dtensor
