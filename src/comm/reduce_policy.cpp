// The reduce policy: a scoped value.
#include "comm/reduce_policy.h"

#include <c10/util/Exception.h>

namespace dtensor {
namespace {

ReducePolicy checked(ReducePolicy policy) {
  const auto type = policy.accumulate.value_or(c10::ScalarType::Float);
  TORCH_CHECK(type == c10::ScalarType::Float || type == c10::ScalarType::Double,
              "ReducePolicy: sums over ranks are formed in float or double, not ", type);
  return policy;
}

}  // namespace

c10::ScalarType detail::accumulation_type() {
  const auto* policy = ScopedValue<ReducePolicy>::current();
  return policy == nullptr ? c10::ScalarType::Undefined : policy->accumulate.value_or(c10::ScalarType::Undefined);
}

c10::ScalarType communication_dtype(c10::ScalarType dtype) {
  using enum c10::ScalarType;
  const bool half = dtype == Half || dtype == BFloat16;
  if (!half && dtype != Float) return Undefined;
  const auto wide = accumulation_type();
  return half || wide == Double ? wide : Undefined;
}

// A scope of the usual policy only hides the one around it, by which operators look already.
ReduceScope::ReduceScope(ReducePolicy policy)
    : scope_(open_scope(checked(policy), Recompute::restored, /*watched=*/policy.accumulate.has_value())) {}

ReducePolicy ReduceScope::current() {
  const auto* policy = ScopedValue<ReducePolicy>::current();
  return policy == nullptr ? ReducePolicy() : *policy;
}

}  // namespace dtensor
