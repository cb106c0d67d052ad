// Links views and casts of a parameter with a gather hook to the parameter. If an operator needs such a view gathered,
// it is taken from the parameter that the schedule has gathered. This applies in forward and to tensors that autograd
// saved.
#pragma once

#include "tensor/impl/dtensor_impl.h"

namespace dtensor {

inline bool has_source(const DTensorImpl& tensor) {
  return C10_UNLIKELY(tensor.extras() != nullptr) && tensor.extras()->source.hooks != nullptr;
}

void inherit_source_slow(DTensorImpl& result, const DTensorImpl& operand);

// Called if `result` is a view or a cast of `operand`, shard by shard.
inline void inherit_source(DTensorImpl& result, const DTensorImpl& operand) {
  if (C10_UNLIKELY(has_source(operand))) inherit_source_slow(result, operand);
}

// A tensor on the device for one in host memory (DeviceMesh::offloaded), of which it is the operand. Its data is copied
// when an operator runs, or by the schedule that gathers it.
c10::intrusive_ptr<DTensorImpl> make_device_copy(DTensorImpl& stored);

// The local tensor of `operand` in the placements of `to`, taken from the parameter that its schedule has gathered;
// undefined if there is none, or if it cannot be used.
at::Tensor find_gathered_by_schedule(const DTensorImpl& operand, const TensorSpec& to);

}  // namespace dtensor
