// The memory order of local tensors. A local tensor steps through its dimensions in the order of its spec's global
// strides, and two dimensions that lie in one step of memory globally do so locally, so that an operator which is a
// view of the global tensor (reshape, flatten) is one of the local tensor too.
#pragma once

#include <ATen/core/Tensor.h>

#include "placement/spec.h"

namespace dtensor {

// Whether the global strides are a dense permutation; so are then those of local tensors that follow the order.
bool has_dense_order(const TensorSpec& spec);
// Views of local tensors that follow the order of their specs do.
bool follows_order(const at::Tensor& local, const TensorSpec& spec);
// `local` itself, or a dense copy in the spec's order. Below autograd.
at::Tensor to_stride_order(at::Tensor local, const TensorSpec& spec);

}  // namespace dtensor
