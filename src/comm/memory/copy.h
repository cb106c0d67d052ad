// Copies between CPU tensors of equal sizes and dtype.
#pragma once

#include <ATen/core/Tensor.h>

namespace dtensor {

// to[...] = from[...], any strides. Never recorded by autograd. The tensors do not overlap, unless they are the same
// view.
void copy_tensor(const at::Tensor& to, const at::Tensor& from);

// From this many bytes on, what one call writes bypasses the cache: it would only evict what the caller needs next, and
// every line written would be read first.
constexpr std::size_t kStreamBytes = std::size_t{4} << 20;

// As memcpy; a large copy is streamed.
void copy_bytes(void* to, const void* from, std::size_t bytes);

}  // namespace dtensor
