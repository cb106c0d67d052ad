// Tensors whose bits in memory are not their values (conjugated and negated views, zeros without memory), which no
// backend knows of.
#pragma once

#include <c10/util/FunctionRef.h>

#include <vector>

#include "dtensor/comm.h"

namespace dtensor {

// Whether the bits in memory are the values.
bool all_resolved(at::TensorList list);

// The same values to read.
at::Tensor resolved(const at::Tensor& t);
std::vector<at::Tensor> resolved(at::TensorList list);

// Calls `call` with plain tensors in place of those of `outputs` that are not, and puts what it has written there into
// them when it is over. `read`: what they hold before counts.
Work with_resolved_outputs(const Communicator& comm, at::TensorList outputs, bool read,
                           c10::function_ref<Work(at::TensorList)> call);

// Autograd counts in-place changes by version; what is written behind its back is counted here. Memory that lazy clones
// share until one is written becomes the tensor's own, before peers write there on threads of theirs.
void mark_outputs_written(at::TensorList outputs);

}  // namespace dtensor
