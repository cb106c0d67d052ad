// Norms over many tensors at once, whatever meshes they live on, and gradient clipping by them.
#pragma once

#include <ATen/core/Tensor.h>

#include "dtensor/export.h"
#include "dtensor/mesh.h"

namespace dtensor {

// Which norm.
struct NormOptions {
  double norm_type = 2;             // p > 0, infinity included
  bool error_if_nonfinite = false;  // waits for the value
  // The ranks that call, among which are those of all tensors' meshes (a stage of a pipeline): they alone exchange,
  // each of them learns the norm, and plain tensors are the same on them; another rank that holds gradients to clip is
  // told so by an error. None: as below.
  DeviceMesh mesh = {};
};

// The p-norm of all elements of all tensors (floating point or complex) together, each logical element counted once
// whatever its placement (Partial is summed first). A plain 0-dim tensor of the widest dtype among them, the same on
// every rank; undefined on a rank outside all meshes (unless some tensors are plain). Undefined entries are skipped. At
// most one collective, of a double for each tensor and a few more, over the ranks of all meshes together, besides one
// for each mesh axis that holds Partial tensors; every rank of those meshes calls it, with the same tensors in the same
// order. Where each rank gives a tensor on its own slice of another one's mesh (a router on each rank, beside experts
// that are split over them), the slices hold copies of one tensor, which is counted once. Plain tensors among DTensors
// must be the same on every rank: those of the CPU are compared, and an error says where they differ. The same bits
// whatever stages of a pipeline the tensors are on.
DTENSOR_API at::Tensor get_total_norm(at::TensorList tensors, NormOptions options = {});

// The p-norm of each of them, likewise: a plain float64 tensor of one dimension, 0 for undefined entries. The total
// norm is the norm of these, added up in their order.
DTENSOR_API at::Tensor get_norms(at::TensorList tensors, NormOptions options = {});
// Those of the parameters' gradients. One without a gradient here, which other ranks may have, still names its mesh.
DTENSOR_API at::Tensor get_grad_norms(at::TensorList parameters, NormOptions options = {});

// Scales the parameters' gradients in place so that their total norm is at most max_norm; returns the norm before.
// Partial gradients are replaced by reduced ones. A parameter that is listed twice (tied weights) counts once.
DTENSOR_API at::Tensor clip_grad_norm_(at::TensorList parameters, double max_norm, NormOptions options = {});

// The second half of that, for a total norm that is known already: scales the gradients in place by
// min(1, max_norm / (total_norm + 1e-6)). Undefined on a rank outside all meshes, where it does nothing.
DTENSOR_API void clip_grads_with_norm_(at::TensorList parameters, double max_norm, const at::Tensor& total_norm);

}  // namespace dtensor
