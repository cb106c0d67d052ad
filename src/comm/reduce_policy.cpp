// The reduce policy: a scope per thread.
#include "comm/reduce_policy.h"

#include <c10/util/Exception.h>

namespace dtensor {

constinit thread_local c10::ScalarType detail::accumulate_in = c10::ScalarType::Undefined;

c10::ScalarType carried_type(c10::ScalarType dtype) {
  using enum c10::ScalarType;
  const bool half = dtype == Half || dtype == BFloat16;
  const bool narrower = half || (dtype == Float && detail::accumulate_in == Double);
  return narrower ? detail::accumulate_in : Undefined;
}

ReduceScope::ReduceScope(ReducePolicy policy) : previous_(detail::accumulate_in) {
  const auto type = policy.accumulate.value_or(c10::ScalarType::Undefined);
  TORCH_CHECK(!policy.accumulate || type == c10::ScalarType::Float || type == c10::ScalarType::Double,
              "ReducePolicy: sums over ranks are formed in float or double, not ", type);
  detail::accumulate_in = type;
}

ReduceScope::~ReduceScope() { detail::accumulate_in = previous_; }

ReducePolicy ReduceScope::current() {
  if (!has_reduce_policy()) return {};
  return {detail::accumulate_in};
}

}  // namespace dtensor
