// What the hit path asks of scopes: one test whether any is open that operators look for.
#pragma once

#include <c10/core/impl/LocalDispatchKeySet.h>

#include "internal/scoped_value.h"

namespace dtensor {

// Calls fall through this key, so including it changes no dispatch. Included keys go with the rest of a thread's state
// to autograd's threads and lie beside the excluded ones, which every operator reads anyway. The guards under which
// operators run leave them alone, while they put the excluded ones back as they were: a scope may be opened or closed
// while an operator runs.
inline constexpr auto kObservingScopesKey = c10::DispatchKey::TESTING_ONLY_GenericWrapper;

inline bool any_observing_scope() { return c10::impl::tls_local_dispatch_key_set().included_.has(kObservingScopesKey); }

}  // namespace dtensor
