// out= overloads that write the memory of `out` directly, replace it, or ignore it for tensor subclasses. The
// functional overload runs instead, and its result is copied to `out`.
#include <c10/core/GradMode.h>
#include <c10/core/ScalarType.h>

#include <algorithm>

#include "ops/dispatch/boxed_kernel.h"
#include "ops/dispatch/functional_overload.h"
#include "ops/local_kernels/special/special_kernel.h"

namespace dtensor {
namespace {

void refuse_gradients(const c10::FunctionSchema& schema, c10::ArrayRef<c10::IValue> args) {
  const bool wanted = c10::GradMode::is_enabled() && std::any_of(args.begin(), args.end(), [](const c10::IValue& arg) {
                        return arg.isTensor() && arg.toTensor().requires_grad();
                      });
  TORCH_CHECK(!wanted, schema.name().substr(schema.name().find(':') + 2),
              "(): functions with out=... arguments don't support automatic differentiation, but one of the arguments "
              "requires grad.");
}

}  // namespace

void run_functional_and_copy(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  refuse_gradients(op.schema(), torch::jit::last(stack, op.schema().arguments().size()));
  const at::Tensor out = torch::jit::pop(stack).toTensor();
  functional_overload(op).callBoxed(stack);
  const at::Tensor result = torch::jit::pop(stack).toTensor();
  TORCH_CHECK(c10::canCast(result.scalar_type(), out.scalar_type()), op.schema().name(),
              ": expected an out= tensor of a type to which ", result.scalar_type(), " can be cast, got ",
              out.scalar_type());
  if (out.sizes() != result.sizes()) out.resize_(result.sizes());
  out.copy_(result);
  stack.emplace_back(out);
}

}  // namespace dtensor
