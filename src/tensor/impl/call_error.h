// What leaves an operator, or a function of this library, as an error says which it was: its name, its operands' specs,
// the mesh, the module.
#pragma once

#include "comm/record/caller.h"
#include "internal/dispatch_modes.h"
#include "mesh/mesh_impl.h"
#include "tensor/impl/dtensor_impl.h"

namespace dtensor {

using SpecList = c10::ArrayRef<const TensorSpec*>;  // null: no tensor, or a number

// f32[4, 8] [S(0), R], f32[8, 2] [R, R]: the first few of them, each with its mesh where that is not the first one's.
std::string describe_operands(SpecList operands);

// Throws the exception that is being handled again, with those words added; the type stays. Once for each error: where
// an operator is made of others, the inner one has said it. `mesh`: for a function that puts tensors there, else null.
[[noreturn]] void rethrow_with_call(const std::string& name, c10::ArrayRef<c10::TensorImpl*> operands,
                                    const MeshInfo* mesh = nullptr);
// The same for a call whose operands have been replaced by their local tensors.
[[noreturn]] void rethrow_with_call(const std::string& name, SpecList operands);

// What data_ptr(), accessors, printing and torch::save then say of this tensor, which has no memory of its own. Costs
// an allocation, so that results of calls that are known already go without: LibTorch's words are for them.
void set_storage_error_message(DTensorImpl& tensor);

// Runs a function of this library: what it communicates, and what it throws, is told to be of `name`, which lives for
// the program. Dispatch modes see none of it.
template <class Run>
auto run_as_call(const std::string& name, const at::Tensor& operand, const MeshInfo* mesh, Run&& run) {
  const CallerScope caller(name);
  const DisableDispatchModesGuard hidden;
  try {
    return run();
  } catch (...) {
    rethrow_with_call(name, operand.defined() ? operand.unsafeGetTensorImpl() : nullptr, mesh);
  }
}

}  // namespace dtensor
