// Adds the context of an operator or library function to exceptions: its name, the specs of its operands, the mesh and
// the module.
#pragma once

#include "comm/record/caller.h"
#include "internal/dispatch_modes.h"
#include "mesh/mesh_impl.h"
#include "tensor/impl/dtensor_impl.h"

namespace dtensor {

using SpecList = c10::ArrayRef<const TensorSpec*>;  // null: no tensor, or a number

// For example f32[4, 8] [S(0), R], f32[8, 2] [R, R]. Lists the first few operands, with the mesh of each one that is
// not on the first one's mesh.
std::string describe_operands(SpecList operands);

// Rethrows the current exception with that context added; its type stays the same. Adds the context only once: for a
// composite operator it is that of the inner operator. `mesh` is the mesh of a function that creates DTensors, else
// null. An operand may be undefined or null.
[[noreturn]] void rethrow_with_call(const std::string& name, at::TensorList operands, const MeshInfo* mesh = nullptr);
[[noreturn]] void rethrow_with_call(const std::string& name, c10::ArrayRef<c10::TensorImpl*> operands);
// The same for a call whose operands have been replaced by their local tensors.
[[noreturn]] void rethrow_with_call(const std::string& name, SpecList operands);

// Sets the error text of data_ptr(), accessors, printing and torch::save for this tensor. It allocates, so results of
// cached calls do not have it and get LibTorch's text.
void set_storage_error_message(DTensorImpl& tensor);

// Runs a function of this library. `name` is attached to its collectives and exceptions and must have static lifetime.
// Dispatch modes do not see the operators that it calls. An operand may be undefined.
template <class Run>
auto run_as_call(const std::string& name, at::TensorList operands, const MeshInfo* mesh, Run&& run) {
  const CallerScope caller(name);
  const DisableDispatchModesGuard hidden;
  try {
    return run();
  } catch (...) {
    rethrow_with_call(name, operands, mesh);
  }
}

}  // namespace dtensor
