// The rows that a dispatcher sends.
#pragma once

#include <ATen/core/Tensor.h>

#include "dtensor/moe/dispatch.h"

namespace dtensor::moe {

// x [tokens, D] to [plan.sent, D]. If plan.apply_probs_before_experts, each row is multiplied by its weight in the
// promoted type and rounded to the dtype of x. Differentiable.
at::Tensor sent_rows(const at::Tensor& x, const DispatchPlan& plan);

}  // namespace dtensor::moe
