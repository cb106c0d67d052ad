// Kernels that the engine registers for the program's life.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <vector>

namespace dtensor {

using Handles = std::vector<c10::RegistrationHandleRAII>;

// Calls with a sparse tensor among DTensors, which dispatch as calls on sparse meta tensors.
void register_sparse_mixing(Handles& handles);

}  // namespace dtensor
