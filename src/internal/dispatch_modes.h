// Visibility for Python dispatch modes (TorchDispatchMode: selective checkpoints, operation counters, loggers). They
// see the operators that the program calls on DTensors, as on one device. Operators on local tensors inside the library
// are hidden.
#pragma once

#include <c10/core/impl/LocalDispatchKeySet.h>

namespace dtensor {

// Dispatch keys of modes.
inline constexpr auto kDispatchModeKeys =
    c10::DispatchKeySet({c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot});

// Whether a mode sees the operators of this thread now.
inline bool is_dispatch_mode_active() {
  const auto keys = c10::impl::tls_local_dispatch_key_set();
  return keys.included_.has(c10::DispatchKey::Python) && !keys.excluded_.has(c10::DispatchKey::Python);
}

// Hides the operators of this thread from modes during its lifetime. Wrapper subclasses have the same keys, so it
// excludes none where no mode is active.
class DisableDispatchModesGuard {
  c10::impl::ExcludeDispatchKeyGuard no_modes_{is_dispatch_mode_active() ? kDispatchModeKeys : c10::DispatchKeySet()};
};

// During its lifetime operators reach wrapper subclasses, also below a DisableDispatchModesGuard.
class EnableSubclassesGuard {
  static c10::impl::LocalDispatchKeySet keys() {
    auto keys = c10::impl::tls_local_dispatch_key_set();
    keys.excluded_ = keys.excluded_ - kDispatchModeKeys;
    return keys;
  }
  c10::impl::ForceDispatchKeyGuard keys_{keys()};
};

}  // namespace dtensor
