// Runs a plan on this rank's local tensor. Collective over the mesh.
#pragma once

#include <ATen/core/Tensor.h>

#include "redistribute/plan/plan.h"

namespace dtensor {

// `local` has this rank's local sizes of `from`, the result those of `to`. The result does not alias `local` unless
// the plan is empty or has only slices. Results of collectives come from the buffer pool.
at::Tensor execute_plan(const RedistributePlan& plan, const at::Tensor& local, const TensorSpec& from);

// The tensor without conjugate and negative bits, since collectives and views access the memory directly.
at::Tensor resolve_conj_and_neg(const at::Tensor& tensor);

at::Tensor redistribute_local(const at::Tensor& local, const TensorSpec& from, const Placements& to);

}  // namespace dtensor
