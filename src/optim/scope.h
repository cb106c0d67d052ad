// What surrounds a step, a norm and the saving of state, wherever in a program they are called.
#pragma once

#include <ATen/core/grad_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

namespace dtensor::optim {

// Plain tensors that are made meanwhile stay plain under a MeshScope, and numbers keep their width under autocast.
struct PlainScope {
  at::NoGradGuard no_grad;
  c10::impl::ExcludeDispatchKeyGuard no_mesh_scope{c10::DispatchKey::DeferredInit};
  c10::impl::ExcludeDispatchKeyGuard no_autocast{c10::autocast_dispatch_keyset};
};

}  // namespace dtensor::optim
