// A call with a sparse tensor and a DTensor dispatches to SparseMeta or SparseCsrMeta: the sparse functionality
// precedes the dense one, and the DTensor contributes MetaBit. Kernels at these keys run calls with a DTensor by the
// operator kernel, and others by ATen's kernel.
#include <c10/util/Exception.h>

#include "ops/dispatch/boxed_kernel.h"
#include "ops/dispatch/for_each_tensor.h"
#include "ops/dispatch/registration.h"
#include "sharding_prop/operators/native_kernel.h"
#include "tensor/impl/dtensor_impl.h"

namespace dtensor {
namespace {

using c10::DispatchKey;

bool has_dtensor(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  bool found = false;
  for (const auto& value : torch::jit::last(stack, op.schema().arguments().size())) {
    for_each_tensor(value, [&](const at::Tensor& t) { found = found || has_dtensor_key(t.unsafeGetTensorImpl()); });
  }
  return found;
}

const c10::KernelFunction* kernel_of_aten(const c10::OperatorHandle& op, DispatchKey key) {
  const auto* own = native_kernel(op, key);
  return own != nullptr ? own : native_kernel(op, DispatchKey::CompositeExplicitAutograd);
}

void mixed_with_sparse(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  if (has_dtensor(op, *stack)) return run_operator(entry_of(op), *stack);
  const auto key = keys.highestPriorityTypeId();
  const auto* aten = kernel_of_aten(op, key);
  TORCH_CHECK_NOT_IMPLEMENTED(aten != nullptr, "Could not run '", op.operator_name(), "' with arguments from the '",
                              key, "' backend.");
  aten->callBoxed(op, keys, stack);
}

// Whether an operator takes two tensors and ATen would run it by a kernel that reads a DTensor's memory.
bool would_bypass_engine(const c10::OperatorHandle& op, DispatchKey key, DispatchKey on_cpu) {
  const auto& arguments = op.schema().arguments();
  const auto tensors = std::count_if(arguments.begin(), arguments.end(), [](const c10::Argument& argument) {
    return argument.real_type()->isSubtypeOf(*c10::TensorType::get());
  });
  if (tensors < 2 || !needs_kernel(op)) return false;
  return native_kernel(op, key) != nullptr ||
         (native_kernel(op, on_cpu) != nullptr && kernel_of_aten(op, key) != nullptr);
}

// Suppresses the warning that a registration overrides a kernel of ATen. The override is intended.
class Silent : public c10::WarningHandler {
  void process(const c10::Warning&) override {}
};

}  // namespace

void register_sparse_mixing(Handles& handles) {
  auto& dispatcher = c10::Dispatcher::singleton();
  Silent silent;
  const c10::WarningUtils::WarningHandlerGuard guard(&silent);
  for (const auto& [key, on_cpu] : {std::pair(DispatchKey::SparseMeta, DispatchKey::SparseCPU),
                                    std::pair(DispatchKey::SparseCsrMeta, DispatchKey::SparseCsrCPU)}) {
    const auto kernel = [] { return c10::KernelFunction::makeFromBoxedFunction<&mixed_with_sparse>(); };
    handles.push_back(dispatcher.registerFallback(key, kernel(), "dtensor: sparse tensors among DTensors"));
    for (const auto& name : dispatcher.getAllOpNames()) {
      const auto op = dispatcher.findSchema(name);
      if (!op || !would_bypass_engine(*op, key, on_cpu)) continue;
      handles.push_back(dispatcher.registerImpl(name, key, kernel(), std::nullopt, nullptr, "dtensor"));
    }
  }
}

}  // namespace dtensor
