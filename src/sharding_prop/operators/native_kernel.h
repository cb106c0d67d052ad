// Kernels for meta tensors as C++ libraries registered them. Importing torch in Python puts Python functions before a
// thousand of ATen's; they answer for tracing (guesses about data, errors where ATen gives a result), are not always of
// ATen's opinion, and want the interpreter lock.
#pragma once

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

namespace dtensor {

// The newest kernel of this very key that C++ gave the operator; null: none.
const c10::KernelFunction* native_kernel(const c10::OperatorHandle& op, c10::DispatchKey key);

// What a call on meta tensors would come to if Python had registered nothing; null: nothing.
const c10::KernelFunction* native_meta_kernel(const c10::OperatorHandle& op);

// While it lives, operators on meta tensors on this thread, those that kernels call included, run these kernels, below
// autograd. Those that have none, but one for CPUs, are errors that say so; others are the dispatcher's business.
class NativeMetaKernels {
 public:
  NativeMetaKernels();

 private:
  at::AutoDispatchBelowADInplaceOrView below_autograd_;
  c10::impl::ForceDispatchKeyGuard mode_;
};

}  // namespace dtensor
