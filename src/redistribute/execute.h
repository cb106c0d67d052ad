// Runs a plan on this rank's local tensor. Collective over the mesh.
#pragma once

#include <ATen/core/Tensor.h>

#include "redistribute/plan/plan.h"

namespace dtensor {

// `local` has the sizes that `from` gives this rank; the result those of `to`. Never aliases `local` unless the plan is
// empty or slices only. Results of collectives come from the buffer pool.
at::Tensor execute_plan(const RedistributePlan& plan, const at::Tensor& local, const TensorSpec& from);

// The tensor without conjugate and negative bits: collectives and views see what is in memory.
at::Tensor resolve_conj_and_neg(const at::Tensor& tensor);

at::Tensor redistribute_local(const at::Tensor& local, const TensorSpec& from, const Placements& to);

}  // namespace dtensor
