// Guards for code that computes with local tensors in ATen: operators, dispatchers, user-defined optimizers.
#pragma once

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

namespace dtensor {

// The dispatch key through which MeshScope intercepts factory functions.
inline constexpr auto kMeshScopeKey = c10::DispatchKey::DeferredInit;

// During its lifetime, factory functions create regular tensors even inside a MeshScope.
struct NoMeshScopeGuard {
  c10::impl::ExcludeDispatchKeyGuard exclude_mesh_scope{kMeshScopeKey};  // excludes the key
};

// Also disables grad mode and autocast, for example for an optimizer step, a norm or a message.
struct LocalNoGradGuard : NoMeshScopeGuard {
  at::NoGradGuard no_grad;                                                        // records no graph
  c10::impl::ExcludeDispatchKeyGuard no_autocast{c10::autocast_dispatch_keyset};  // keeps dtypes
};

// Also skips autograd and version counters. For kernels of a function with its own node, and for copies that must not
// be visible to autograd, modes or a mesh.
struct LocalBelowAutogradGuard : NoMeshScopeGuard {
  at::AutoDispatchBelowADInplaceOrView below;                                     // skips autograd
  c10::impl::ExcludeDispatchKeyGuard no_autocast{c10::autocast_dispatch_keyset};  // keeps dtypes
};

}  // namespace dtensor
