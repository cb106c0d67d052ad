// Prepares tensors for NCCL: contiguous, on the device, and in one buffer for its collectives.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace dtensor::nccl {

// Whether all tensors have the same number of elements. The answer is equal on all members of a collective, so they
// select the same NCCL call. Memory layouts may differ between members.
bool have_equal_numel(at::TensorList list);

// Contiguous tensors on `device` for `list`, in one buffer if `adjacent` (requires have_equal_numel). Returns the
// original tensors where they already qualify, else new ones, with their values if `filled`.
std::vector<at::Tensor> staged_tensors(at::TensorList list, c10::Device device, bool filled, bool adjacent);

}  // namespace dtensor::nccl
