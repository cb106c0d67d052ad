// The hook for schedules before an operator gathers a parameter.
#pragma once

#include <functional>

#include "dtensor/tensor.h"

namespace dtensor {

// Called when an operator needs `parameter`, or a view or cast of it, gathered. `gathered` are the parameter's
// placements with Replicate for storage shards; `dtype` is the dtype that the operator sees. The hook may return the
// local tensor in those placements, for example one that was prefetched with its unit. It may have any dtype that casts
// to `dtype` without loss. If it returns an undefined tensor, the operator kernel gathers the operand. Called in
// forward and backward, in the order of the operators, on every rank of the mesh.
using GatherHook =
    std::function<at::Tensor(const DTensor& parameter, const Placements& gathered, at::ScalarType dtype)>;

// One hook per tensor; an empty function removes it. The hook must not hold the tensor itself. Views and casts find the
// hooks of their parameter only if they are created after the first hook is set.
DTENSOR_API void set_gather_hook(const DTensor& parameter, GatherHook hook);

// The hook of this tensor, or null.
DTENSOR_API const GatherHook* gather_hook(const DTensor& parameter);

// For code that computes on local tensors: the local tensor that an operator would get for `operand` in these
// placements, on the device also if `operand` is in host memory. `operand` is a parameter, or a view or cast of one.
// The result comes from the gather hook if possible, otherwise from redistribution. Records no graph.
DTENSOR_API at::Tensor gathered_local(const DTensor& operand, const Placements& wanted);

}  // namespace dtensor
