// The rows that a dispatcher sends.
#include "moe/dispatch/weighted_rows.h"

#include <ATen/ATen.h>

#include "moe/dispatch/permute.h"

namespace dtensor::moe {

at::Tensor sent_rows(const at::Tensor& x, const DispatchPlan& plan) {
  const auto rows = permute_tokens(x, plan.position, plan.sent);
  if (!plan.apply_probs_before_experts) return rows;
  // Permutes the weights like rows of one element, with one entry per token.
  const auto weight = permute_tokens(plan.weights.reshape({-1, 1}), plan.position.reshape({-1, 1}), plan.sent);
  return (rows.to(at::promote_types(rows.scalar_type(), weight.scalar_type())) * weight).to(rows.scalar_type());
}

}  // namespace dtensor::moe
