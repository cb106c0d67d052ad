// Reductions by ATen's operators, for tensors in whatever memory.
#pragma once

#include <ATen/core/Tensor.h>

#include "dtensor/export.h"
#include "dtensor/placement.h"

namespace dtensor {

// A new tensor of the sources' dtype on `device`: op over them in the order in which they are given, the bits of
// reduce_views (comm/memory/reduce/reduce.h). Half types accumulate in float and are rounded once; avg divides by their
// number; NaN wins in max and min.
DTENSOR_API at::Tensor reduce_tensors(c10::Device device, at::TensorList sources, ReduceOp op);

}  // namespace dtensor
