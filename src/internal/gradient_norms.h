// Norms of each tensor, of which a pipeline makes the norm of all its stages.
#pragma once

#include "dtensor/optim/clip.h"

namespace dtensor {

// The p-norm of each tensor: a regular 1-D float64 tensor, 0 for undefined entries. The total norm is their norm,
// summed in this order.
DTENSOR_API at::Tensor get_norms(at::TensorList tensors, NormOptions options = {});
// The norms of the parameters' gradients. A parameter without a gradient on this rank still determines the mesh.
DTENSOR_API at::Tensor get_grad_norms(at::TensorList parameters, NormOptions options = {});

}  // namespace dtensor
