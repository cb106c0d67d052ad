// The rows that a dispatcher sends.
#include "moe/dispatch/weighted_rows.h"

#include <ATen/ATen.h>

#include "dtensor/moe/exchange.h"

namespace dtensor::moe {

at::Tensor sent_rows(const at::Tensor& x, const DispatchPlan& plan) {
  const auto rows = expand_rows(x, plan.position, plan.sent);
  if (!plan.weighs_before) return rows;
  // As rows of one number, of which entry i is token i.
  const auto weight = expand_rows(plan.weights.reshape({-1, 1}), plan.position.reshape({-1, 1}), plan.sent);
  return (rows.to(at::promote_types(rows.scalar_type(), weight.scalar_type())) * weight).to(rows.scalar_type());
}

}  // namespace dtensor::moe
