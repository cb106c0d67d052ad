// The kernels that the library registers and never deregisters.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <vector>

namespace dtensor {

// Registers the kernels. Idempotent and thread-safe. Every public function that creates a DTensor calls it, since a
// static library has no load-time registration.
void ensure_registered();

using Handles = std::vector<c10::RegistrationHandleRAII>;

// Registers kernels for calls that mix sparse tensors and DTensors, which dispatch to the sparse meta keys.
void register_sparse_mixing(Handles& handles);

}  // namespace dtensor
