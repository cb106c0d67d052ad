// The rows that a dispatcher sends.
#pragma once

#include <ATen/core/Tensor.h>

#include "dtensor/moe/dispatch.h"

namespace dtensor::moe {

// x [tokens, D] to [plan.sent, D], each row multiplied by its entry's weight where the plan weighs before experts: in
// the weight's type, then rounded to x's. Differentiable.
at::Tensor sent_rows(const at::Tensor& x, const DispatchPlan& plan);

}  // namespace dtensor::moe
