// The reduce policy as the engine asks for it.
#pragma once

#include "dtensor/comm.h"
#include "scope/scope_frames.h"

namespace dtensor {

namespace detail {
c10::ScalarType accumulation_type();
}

// Undefined: tensors are reduced as they are.
inline c10::ScalarType accumulation_type() {
  return any_observing_scope() ? detail::accumulation_type() : c10::ScalarType::Undefined;
}

// The type in which tensors of this dtype are to be carried until they are reduced; Undefined: their own.
c10::ScalarType communication_dtype(c10::ScalarType dtype);

}  // namespace dtensor
