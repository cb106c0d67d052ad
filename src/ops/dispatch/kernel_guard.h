// The guard around an operator's kernel. It disables autograd, and MeshScope because temporaries of a local computation
// are regular tensors.
#pragma once

#include <c10/core/impl/LocalDispatchKeySet.h>

#include "internal/aten_scopes.h"
#include "scope/scope_frames.h"

namespace dtensor {

// An inline c10::impl::ExcludeDispatchKeyGuard that reads the thread's dispatch keys once. c10's guard costs two calls
// into another library for every operator.
class KernelGuard {
 public:
  C10_ALWAYS_INLINE KernelGuard() : keys_(&c10::impl::raw_local_dispatch_key_set), before_(keys_->excluded()) {
    keys_->set_excluded(before_ | c10::autograd_dispatch_keyset_with_ADInplaceOrView |
                        c10::DispatchKeySet(kMeshScopeKey));
  }
  C10_ALWAYS_INLINE ~KernelGuard() { keys_->set_excluded(before_); }
  KernelGuard(const KernelGuard&) = delete;
  KernelGuard& operator=(const KernelGuard&) = delete;

  bool any_operator_scope() const { return keys_->included().has(kOperatorScopesKey); }

 private:
  c10::impl::PODLocalDispatchKeySet* keys_;
  c10::DispatchKeySet before_;
};

}  // namespace dtensor
