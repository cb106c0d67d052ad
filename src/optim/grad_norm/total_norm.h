// The total norm of gradients, of which clipping scales them.
#pragma once

#include <vector>

#include "dtensor/optim/clip.h"
#include "internal/simulated.h"
#include "optim/grad_norm/norm_group.h"

namespace dtensor::optim {

// Whether the host can read the values without waiting for a device.
inline bool has_values_on_host(const at::Tensor& tensor) { return tensor.is_cpu() && !is_simulated(tensor); }

// The gradients of parameters, checked and without Partials. A parameter without gradient on this rank still determines
// a mesh. Undefined parameters do not.
struct Gradients {
  Gradients(at::TensorList parameters, double norm_type);
  std::vector<at::Tensor> reduced;    // undefined: none
  std::vector<at::Tensor> described;  // the parameter, where there is no gradient
};

// The norm of all, in at least float. `described`: tensors with the same dtypes and meshes, defined also if this rank
// has no gradient. Collective over the ranks of the group.
at::Tensor total_norm(at::TensorList tensors, at::TensorList described, const NormGroup& group,
                      const NormOptions& options);

}  // namespace dtensor::optim
