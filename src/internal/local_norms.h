// Norms of a list of local tensors.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

namespace dtensor {

// The p-norm of each tensor, in `dtype`; default: float for 16-bit tensors, else the tensor's own. Undefined for
// undefined and empty tensors. Calls ATen's list operator once for 16-bit tensors and once for others.
std::vector<at::Tensor> local_norms(const std::vector<at::Tensor>& tensors, double p,
                                    std::optional<at::ScalarType> dtype = {});

}  // namespace dtensor
