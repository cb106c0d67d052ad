// What the hit path asks of scopes: one test whether any is open that operators look for.
#pragma once

#include <c10/core/impl/LocalDispatchKeySet.h>

#include "dtensor/scoped_value.h"

namespace dtensor {

// No tensor has this key, so excluding it changes no dispatch. Excluded keys go with the rest of a thread's state to
// autograd's threads, and every operator reads them anyway.
inline constexpr auto kWatchedScopesKey = c10::DispatchKey::TESTING_ONLY_GenericWrapper;

inline bool scopes_watched() { return c10::impl::tls_local_dispatch_key_set().excluded_.has(kWatchedScopesKey); }

}  // namespace dtensor
