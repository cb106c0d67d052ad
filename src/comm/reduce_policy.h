// The reduce policy as the engine asks for it.
#pragma once

#include "dtensor/reduce_policy.h"
#include "scope/scoped_value.h"

namespace dtensor {

namespace detail {
c10::ScalarType accumulation_type();
}

// Undefined: tensors are reduced as they are.
inline c10::ScalarType accumulation_type() {
  return scopes_watched() ? detail::accumulation_type() : c10::ScalarType::Undefined;
}

// The type in which tensors of this dtype are to be carried until they are reduced; Undefined: their own.
c10::ScalarType carried_type(c10::ScalarType dtype);

}  // namespace dtensor
