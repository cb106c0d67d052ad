// Autocast of functions with their own autograd node, which ATen's casts do not reach.
#pragma once

#include <ATen/autocast_mode.h>
#include <ATen/core/Tensor.h>

namespace dtensor {

// An operand of a product in the dtype that autocast gives those of a linear layer.
inline at::Tensor cast_as_autocast(const at::Tensor& operand) {
  const auto device = operand.device().type();
  if (!at::autocast::is_autocast_enabled(device)) return operand;
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  return at::autocast::cached_cast(at::autocast::get_autocast_dtype(device), operand, device);
}

}  // namespace dtensor
