// What dispatch modes of Python (TorchDispatchMode: selective checkpoints, counters of operations, loggers) see: the
// operators that the program calls on DTensors, as one device has them. What the library does for them on local tensors
// is none of these.
#pragma once

#include <c10/core/impl/LocalDispatchKeySet.h>

namespace dtensor {

// The dispatch keys by which modes see operators.
inline constexpr auto kDispatchModeKeys =
    c10::DispatchKeySet({c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot});

// While it lives, no mode sees what this thread runs.
class DisableDispatchModesGuard {
  c10::impl::ExcludeDispatchKeyGuard no_modes_{kDispatchModeKeys};
};

// Whether a mode sees what this thread runs now.
inline bool is_dispatch_mode_active() {
  const auto keys = c10::impl::tls_local_dispatch_key_set();
  return keys.included_.has(c10::DispatchKey::Python) && !keys.excluded_.has(c10::DispatchKey::Python);
}

}  // namespace dtensor
