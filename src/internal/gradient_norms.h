// Sums of squares of gradients, of which a pipeline makes the norm of all its stages.
#pragma once

#include <ATen/core/Tensor.h>
#include "dtensor/mesh.h"

namespace dtensor {

// The sums of squares of the parameters' gradients: a regular 1-D float64 tensor, 0 for undefined entries. `mesh` is
// NormOptions::mesh. A parameter without a gradient on this rank still determines the mesh.
DTENSOR_API at::Tensor get_grad_squares(at::TensorList parameters, const DeviceMesh& mesh = {});
// The root of their sum in this order, as clip_grad_norm_() computes it; float64.
DTENSOR_API at::Tensor norm_of_squares(const at::Tensor& squares);

}  // namespace dtensor
