// The memory order of local tensors. A local tensor steps through its dimensions in the order of its spec's global
// strides, so that an operator which is a view of the global tensor (reshape, flatten) is one of the local tensor too.
#pragma once

#include <ATen/core/Tensor.h>

#include "placement/spec.h"

namespace dtensor {

// Whether the global strides are a dense permutation (else no order is asked for).
bool has_dense_order(const TensorSpec& spec);
bool follows_order(const at::Tensor& local, const TensorSpec& spec);
// `local` itself, or a dense copy in the spec's order. Below autograd.
at::Tensor in_order_of(at::Tensor local, const TensorSpec& spec);

}  // namespace dtensor
