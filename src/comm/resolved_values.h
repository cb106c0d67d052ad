// Tensors whose memory does not contain their values (conjugate and negative views, zero tensors), which backends do
// not support.
#pragma once

#include <c10/util/FunctionRef.h>

#include <vector>

#include "dtensor/comm.h"

namespace dtensor {

// Whether the memory contains the values.
bool all_resolved(at::TensorList list);

// A tensor with the same values that is resolved.
at::Tensor resolved(const at::Tensor& t);
std::vector<at::Tensor> resolved(at::TensorList list);

// Calls `call` with resolved temporaries in place of unresolved `outputs`, and copies their values back when it
// completes. `read`: the call also reads the outputs.
Work with_resolved_outputs(const Communicator& comm, at::TensorList outputs, bool read,
                           c10::function_ref<Work(at::TensorList)> call);

// Advances the version counters for writes that autograd does not see. Also materializes lazy clones, before peers
// write to the memory on their own threads.
void mark_outputs_written(at::TensorList outputs);

}  // namespace dtensor
