// For code that computes with local tensors by plain ATen: operators, dispatchers, optimizers of one's own.
#pragma once

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

namespace dtensor {

// The dispatch key under which a MeshScope takes the calls of factories.
inline constexpr auto kMeshScopeKey = c10::DispatchKey::DeferredInit;

// Factories make plain tensors while it lives, whatever MeshScope is open.
struct NoMeshScopeGuard {
  c10::impl::ExcludeDispatchKeyGuard exclude_mesh_scope{kMeshScopeKey};  // holds the key off
};

// The same without a graph, and numbers keep their width under autocast: what surrounds a step, a norm, a message.
struct LocalNoGradGuard : NoMeshScopeGuard {
  at::NoGradGuard no_grad;                                                        // records no graph
  c10::impl::ExcludeDispatchKeyGuard no_autocast{c10::autocast_dispatch_keyset};  // keeps dtypes
};

// The same below autograd, where not even versions count: kernels of a function that has a node of its own, and copies
// that are no part of anybody's graph, mode or mesh.
struct LocalBelowAutogradGuard : NoMeshScopeGuard {
  at::AutoDispatchBelowADInplaceOrView below;                                     // skips autograd
  c10::impl::ExcludeDispatchKeyGuard no_autocast{c10::autocast_dispatch_keyset};  // keeps dtypes
};

}  // namespace dtensor
