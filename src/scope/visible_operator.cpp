// Stores the computation in a scoped value, because modes are Python functions that cannot pass it back to the operator
// kernel.
#include "scope/visible_operator.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "internal/dispatch_modes.h"
#include "scope/scope_frames.h"

namespace dtensor {
namespace {

struct VisibleOpCall {
  const c10::OperatorHandle* op = nullptr;
  const Computation* compute = nullptr;
};

// Reverts DisableDispatchModesGuard, below autograd.
c10::impl::LocalDispatchKeySet keys_of_program() {
  auto keys = c10::impl::tls_local_dispatch_key_set();
  keys.excluded_ = (keys.excluded_ - kDispatchModeKeys) | c10::autograd_dispatch_keyset_with_ADInplaceOrView;
  return keys;
}

}  // namespace

void run_visible_as_op(const c10::OperatorHandle& op, torch::jit::Stack& stack, bool shown,
                       const Computation& compute) {
  if (!shown) return compute(stack);
  const ScopedValue<VisibleOpCall> scope({&op, &compute}, Recompute::unchanged, OperatorScope::yes);
  const c10::impl::ForceDispatchKeyGuard visible(keys_of_program());
  op.callBoxed(stack);
}

bool run_visible_call(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  if (!any_operator_scope()) return false;
  const auto* found = ScopedValue<VisibleOpCall>::current();
  if (found == nullptr || found->op == nullptr || found->op->operator_name() != op.operator_name()) return false;
  const auto& compute = *found->compute;
  const ScopedValue<VisibleOpCall> none({}, Recompute::unchanged);
  const DisableDispatchModesGuard hidden;
  compute(stack);
  return true;
}

}  // namespace dtensor
