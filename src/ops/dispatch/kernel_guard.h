// Where an operator's kernel runs: below autograd, and outside a MeshScope, since temporaries of a local computation
// are plain tensors.
#pragma once

#include <c10/core/impl/LocalDispatchKeySet.h>

#include "internal/aten_scopes.h"
#include "scope/scope_frames.h"

namespace dtensor {

// c10::impl::ExcludeDispatchKeyGuard in line, with one look at the thread's keys for all that is asked of them: every
// operator passes here, and that one is a call into another library on the way in and on the way out.
class EngineGuard {
 public:
  C10_ALWAYS_INLINE EngineGuard() : keys_(&c10::impl::raw_local_dispatch_key_set), before_(keys_->excluded()) {
    keys_->set_excluded(before_ | c10::autograd_dispatch_keyset_with_ADInplaceOrView |
                        c10::DispatchKeySet(kMeshScopeKey));
  }
  C10_ALWAYS_INLINE ~EngineGuard() { keys_->set_excluded(before_); }
  EngineGuard(const EngineGuard&) = delete;
  EngineGuard& operator=(const EngineGuard&) = delete;

  bool any_observing_scope() const { return keys_->included().has(kObservingScopesKey); }

 private:
  c10::impl::PODLocalDispatchKeySet* keys_;
  c10::DispatchKeySet before_;
};

}  // namespace dtensor
