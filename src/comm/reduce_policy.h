// The reduce policy of this thread as the engine asks for it: one thread-local byte on the hit path.
#pragma once

#include "dtensor/reduce_policy.h"

namespace dtensor {

namespace detail {
// Undefined: tensors are reduced as they are.
extern constinit thread_local c10::ScalarType accumulate_in;
}  // namespace detail

inline bool has_reduce_policy() { return detail::accumulate_in != c10::ScalarType::Undefined; }

// The type in which tensors of this dtype are to be carried until they are reduced; Undefined: their own.
c10::ScalarType carried_type(c10::ScalarType dtype);

}  // namespace dtensor
