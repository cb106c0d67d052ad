// Gradient norms of tensors on any combination of meshes, and gradient clipping.
#pragma once

#include <ATen/core/Tensor.h>

#include "dtensor/export.h"
#include "dtensor/mesh.h"

namespace dtensor {

// Options of the norms.
struct NormOptions {
  double norm_type = 2;             // p > 0, may be infinity
  bool error_if_nonfinite = false;  // synchronizes with the device
  // The ranks that call the function; they must include the meshes of all tensors (for instance all pipeline stages).
  // Only these ranks communicate, and all of them return the norm. Regular tensors must be equal on them. A rank
  // outside `mesh` that has gradients to clip gets an error. Undefined: see get_total_norm().
  DeviceMesh mesh = {};
};

// The p-norm of all elements of all tensors (floating point or complex). Each logical element counts once regardless of
// placement; Partial is reduced first. The result is a regular 0-dim tensor of the widest dtype, equal on all ranks. It
// is undefined on ranks outside all meshes, unless some tensors are regular. Undefined tensors are skipped.
// All ranks of the meshes must call it with the same tensors in the same order. It needs at most one collective over
// all meshes together, plus one per mesh axis with Partial tensors. Ranks may give copies of a tensor on different
// slices of another tensor's mesh (a router next to sharded experts); such a tensor counts once. Regular tensors among
// DTensors must be equal on all ranks; CPU tensors are compared and a difference is an error. The result has the same
// bits for any assignment of tensors to pipeline stages.
DTENSOR_API at::Tensor get_total_norm(at::TensorList tensors, NormOptions options = {});

// Scales the gradients in place so that their total norm is at most max_norm; returns the norm before. Partial
// gradients are replaced by reduced ones. A parameter that is listed twice (tied weights) counts once.
DTENSOR_API at::Tensor clip_grad_norm_(at::TensorList parameters, double max_norm, NormOptions options = {});

// max(1, (total_norm + 1e-6) / max_norm): the number by which clipping divides gradients, for an optimizer that divides
// them itself (AdamW::divide_gradients). Undefined if total_norm is, or if the host knows that the number is 1.
DTENSOR_API at::Tensor clip_divisor(double max_norm, const at::Tensor& total_norm);

// Scales the gradients in place by min(1, max_norm / (total_norm + 1e-6)), as clip_grad_norm_() does, for a given norm.
// Does nothing if total_norm is undefined (on ranks outside all meshes).
DTENSOR_API void clip_grads_with_norm_(at::TensorList parameters, double max_norm, const at::Tensor& total_norm);

}  // namespace dtensor
