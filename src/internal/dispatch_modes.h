// Visibility for Python dispatch modes (TorchDispatchMode: selective checkpoints, operation counters, loggers). They
// see the operators that the program calls on DTensors, as on one device. Operators on local tensors inside the library
// are hidden.
#pragma once

#include <c10/core/impl/LocalDispatchKeySet.h>

namespace dtensor {

// Dispatch keys of modes.
inline constexpr auto kDispatchModeKeys =
    c10::DispatchKeySet({c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot});

// Hides the operators of this thread from modes during its lifetime.
class DisableDispatchModesGuard {
  c10::impl::ExcludeDispatchKeyGuard no_modes_{kDispatchModeKeys};
};

// Whether a mode sees the operators of this thread now.
inline bool is_dispatch_mode_active() {
  const auto keys = c10::impl::tls_local_dispatch_key_set();
  return keys.included_.has(c10::DispatchKey::Python) && !keys.excluded_.has(c10::DispatchKey::Python);
}

}  // namespace dtensor
