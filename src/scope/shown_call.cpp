// The computation is a scoped value: modes are Python functions, and nothing else leads from them to the engine.
#include "scope/shown_call.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "dtensor/hidden_from_modes.h"
#include "scope/scoped_value.h"

namespace dtensor {
namespace {

struct ShownCall {
  const c10::OperatorHandle* op = nullptr;
  const Computation* compute = nullptr;
};

// Opposite of HiddenFromModes, below autograd.
c10::impl::LocalDispatchKeySet keys_of_program() {
  auto keys = c10::impl::tls_local_dispatch_key_set();
  keys.excluded_ = (keys.excluded_ - kModeKeys) | c10::autograd_dispatch_keyset_with_ADInplaceOrView;
  return keys;
}

}  // namespace

void run_shown_as(const c10::OperatorHandle& op, torch::jit::Stack& stack, bool shown, const Computation& compute) {
  if (!shown) return compute(stack);
  const ScopedValue<ShownCall> scope({&op, &compute}, /*watched=*/true);
  const c10::impl::ForceDispatchKeyGuard visible(keys_of_program());
  op.callBoxed(stack);
}

bool run_shown_call(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  if (!scopes_watched()) return false;
  const auto* found = ScopedValue<ShownCall>::current();
  if (found == nullptr || found->op == nullptr || found->op->operator_name() != op.operator_name()) return false;
  const auto& compute = *found->compute;
  const ScopedValue<ShownCall> none({});
  const HiddenFromModes hidden;
  compute(stack);
  return true;
}

}  // namespace dtensor
