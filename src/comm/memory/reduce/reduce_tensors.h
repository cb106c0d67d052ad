// Reductions with ATen operators, for tensors on any device.
#pragma once

#include <ATen/core/Tensor.h>

#include "dtensor/export.h"
#include "dtensor/placement.h"

namespace dtensor {

// A new tensor of the sources' dtype on `device`: op over the sources in the given order, bitwise equal to
// reduce_views (comm/memory/reduce/reduce.h). Half types accumulate in float and are rounded once; avg divides by the
// number of sources; max and min propagate NaN.
DTENSOR_API at::Tensor reduce_tensors(c10::Device device, at::TensorList sources, ReduceOp op);

}  // namespace dtensor
