// Selects the memory of redistribution results.
#include "redistribute/result_buffers.h"

#include <ATen/ATen.h>

#include "comm/memory/copy.h"
#include "comm/memory/pool/buffer_pool.h"

namespace dtensor {

at::Tensor result_buffer(at::IntArrayRef sizes, const at::Tensor& like) {
  if (like.is_cpu()) return pooled_empty(sizes, like.scalar_type());
  return at::empty(sizes, at::TensorOptions(like.scalar_type()).device(like.device()));
}

at::Tensor copied(const at::Tensor& tensor) {
  if (tensor._is_zerotensor()) return tensor.clone();  // has no memory
  at::Tensor result = result_buffer(tensor.sizes(), tensor);
  tensor.is_cpu() ? copy_tensor(result, tensor) : static_cast<void>(result.copy_(tensor));
  return result;
}

}  // namespace dtensor
