// Prepares tensors for NCCL: contiguous, and in one buffer for its collectives.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace dtensor::nccl {

// Whether all tensors have the same number of elements. The answer is equal on all members of a collective, so they
// select the same NCCL call. Memory layouts may differ between members.
bool have_equal_numel(at::TensorList list);

// Contiguous tensors for `list`. Each row of `row` tensors is in one buffer if its tensors have equal numbers of
// elements. Returns the original tensors where they already qualify, else new ones, with their values if `filled`.
std::vector<at::Tensor> staged_tensors(at::TensorList list, std::size_t row, bool filled);

}  // namespace dtensor::nccl
