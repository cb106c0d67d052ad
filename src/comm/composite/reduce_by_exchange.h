// Reductions from all_to_all, ATen operators and all_gather, for backends whose library does not support a dtype or
// gives other values than ATen. Each rank communicates as many bytes as an optimal reduction.
#pragma once

#include "dtensor/comm_backend.h"

namespace dtensor {

// Like CommBackend::all_reduce and reduce_scatter, with all_to_all and all_gather of `backend` on `device`. Complete
// on return, like a Work after wait().
DTENSOR_API void all_reduce_via_all_to_all(CommBackend& backend, const CollectiveCall& call, const at::Tensor& tensor,
                                           c10::Device device);
DTENSOR_API void reduce_scatter_via_all_to_all(CommBackend& backend, const CollectiveCall& call,
                                               const at::Tensor& output, at::TensorList inputs, c10::Device device);

}  // namespace dtensor
