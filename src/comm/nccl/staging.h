// Tensors as NCCL takes them: contiguous, on the device, and for its collectives one behind the other.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace dtensor::nccl {

// Whether all have as many elements. The members of a collective know that alike, and so call the same of NCCL; where
// its tensors lie is each member's own affair.
bool have_equal_numel(at::TensorList list);

// Contiguous tensors on `device` for `list`, and where asked for `adjacent` ones (of have_equal_numel): its own where
// they are, else others with their values (`filled`) or room for them.
std::vector<at::Tensor> staged_tensors(at::TensorList list, c10::Device device, bool filled, bool adjacent);

}  // namespace dtensor::nccl
