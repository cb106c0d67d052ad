// Norms of each tensor, and sums of squares, of which a pipeline makes the norm of all its stages.
#pragma once

#include "dtensor/optim/clip.h"

namespace dtensor {

// The p-norm of each tensor: a regular 1-D float64 tensor, 0 for undefined entries. The total norm is their norm,
// summed in this order.
DTENSOR_API at::Tensor get_norms(at::TensorList tensors, NormOptions options = {});
// The sums of squares of the parameters' gradients: a regular 1-D float64 tensor, 0 for undefined entries. `mesh` is
// NormOptions::mesh. A parameter without a gradient on this rank still determines the mesh.
DTENSOR_API at::Tensor get_grad_squares(at::TensorList parameters, const DeviceMesh& mesh = {});
// The root of their sum in this order, as clip_grad_norm_() computes it; float64.
DTENSOR_API at::Tensor norm_of_squares(const at::Tensor& squares);

}  // namespace dtensor
