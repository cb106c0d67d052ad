// Wrapper subclasses of Python (torch.Tensor._make_wrapper_subclass): tensors without memory, whose operators run in
// Python. As local tensors of a DTensor they take part in operators that need neither communication nor a local kernel.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include "internal/dispatch_modes.h"

namespace dtensor {

inline bool is_wrapper_subclass(const at::Tensor& tensor) {
  const auto* impl = tensor.unsafeGetTensorImpl();
  if (C10_LIKELY(!impl->key_set().has(c10::DispatchKey::Python))) return false;
  return tensor.is_meta() || !impl->has_storage() || impl->unsafe_storage().data() == nullptr;
}

// A copy of a wrapper subclass in memory. The subclass decides what it copies.
inline at::Tensor copy_to_memory(const at::Tensor& wrapper) {
  const EnableSubclassesGuard subclasses;
  return at::empty(wrapper.sizes(), at::TensorOptions(wrapper.scalar_type()).device(wrapper.device())).copy_(wrapper);
}

// Throws for a wrapper subclass where memory is read.
inline void check_is_no_wrapper(const at::Tensor& local, std::string_view reader) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      !is_wrapper_subclass(local) || local.numel() == 0, reader, ": expected a local tensor with memory, ",
      "got a wrapper subclass of sizes ", local.sizes(), ", on which operators run element by element ",
      "only (optimizers, casts, copies); compute with its gathered parameter, or convert to_local() to a ",
      "regular tensor");
}

}  // namespace dtensor
