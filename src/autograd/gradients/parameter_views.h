// Views and casts of a parameter that a schedule watches find their way back to it: where an operator needs one
// gathered, the schedule's gathered parameter serves. In forward, and for what autograd saved for backward.
#pragma once

#include "tensor/impl/dtensor_impl.h"

namespace dtensor {

inline bool has_source(const DTensorImpl& tensor) {
  return C10_UNLIKELY(tensor.extras() != nullptr) && tensor.extras()->source.hooks != nullptr;
}

void inherit_source_slow(DTensorImpl& result, const DTensorImpl& operand);

// `result` is a view of `operand`, or its cast, shard by shard.
inline void inherit_source(DTensorImpl& result, const DTensorImpl& operand) {
  if (C10_UNLIKELY(has_source(operand))) inherit_source_slow(result, operand);
}

// The local tensor of `operand` in the placements of `to`, out of what the schedule of its parameter has gathered;
// undefined where there is none, or where it does not serve.
at::Tensor find_gathered_by_schedule(const DTensorImpl& operand, const TensorSpec& to);

}  // namespace dtensor
