// Reductions for backends whose library has none for a dtype, or has other values for it: from an exchange of parts and
// a gathering, with ATen's operators in between. Every rank moves the bytes that a reduction moves at the least.
#pragma once

#include "dtensor/comm_backend.h"

namespace dtensor {

// As CommBackend::all_reduce and reduce_scatter, by all_to_all and all_gather of `backend` on `device`. Done when it
// returns, as a Work is after wait().
DTENSOR_API void all_reduce_via_all_to_all(CommBackend& backend, const CollectiveCall& call, const at::Tensor& tensor,
                                           c10::Device device);
DTENSOR_API void reduce_scatter_via_all_to_all(CommBackend& backend, const CollectiveCall& call,
                                               const at::Tensor& output, at::TensorList inputs, c10::Device device);

}  // namespace dtensor
