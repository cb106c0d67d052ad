// The memory order of local tensors. A local tensor has its dimensions in the order of its spec's global strides, and
// dimensions that can be merged globally can be merged locally. So an operator that is a view of the global tensor
// (reshape, flatten) is also a view of the local tensor.
#pragma once

#include <ATen/core/Tensor.h>

#include "placement/spec.h"

namespace dtensor {

// Whether the global strides are a dense permutation; then local tensors that follow the order are dense too.
bool has_dense_order(const TensorSpec& spec);
// Whether the local tensor follows the order of its spec. Views of local tensors that do so also follow it.
bool follows_order(const at::Tensor& local, const TensorSpec& spec);
// `local` itself, or a dense copy in the spec's order. Below autograd.
at::Tensor to_stride_order(at::Tensor local, const TensorSpec& spec);

}  // namespace dtensor
