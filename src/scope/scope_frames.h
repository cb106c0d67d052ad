// One test on the cache-hit path: whether a scope is open that operators look for (OperatorScope::yes).
#pragma once

#include <c10/core/impl/LocalDispatchKeySet.h>

#include "internal/scoped_value.h"

namespace dtensor {

// All calls fall through this key, so including it does not change dispatch. Autograd copies included keys to its
// threads with the rest of the thread-local state. They are adjacent to the excluded keys, which every operator reads
// anyway. The guards that surround kernels restore excluded keys but not included ones, so a scope may open or close
// inside an operator.
inline constexpr auto kOperatorScopesKey = c10::DispatchKey::TESTING_ONLY_GenericWrapper;

inline bool any_operator_scope() { return c10::impl::tls_local_dispatch_key_set().included_.has(kOperatorScopesKey); }

}  // namespace dtensor
