// Meta kernels as C++ libraries registered them. `import torch` replaces about a thousand of ATen's meta kernels by
// Python functions. These are made for tracing (they guess data, or throw where ATen returns a result), differ from
// ATen in some cases, and need the GIL.
#pragma once

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

namespace dtensor {

// The newest C++ kernel that was registered for exactly this key; null if none.
const c10::KernelFunction* native_kernel(const c10::OperatorHandle& op, c10::DispatchKey key);

// The kernel that a call on meta tensors would use without Python's registrations; null if none.
const c10::KernelFunction* native_meta_kernel(const c10::OperatorHandle& op);

// During its lifetime, operators on meta tensors on this thread, including those that kernels call, run these kernels
// below autograd. Operators with a CPU kernel but no meta kernel throw; others are dispatched as usual.
class NativeMetaKernels {
 public:
  NativeMetaKernels();

 private:
  at::AutoDispatchBelowADInplaceOrView below_autograd_;
  c10::impl::ForceDispatchKeyGuard mode_;
};

}  // namespace dtensor
