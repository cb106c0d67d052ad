// The parts of the unboxed hit path that do not depend on the signature.
#include "ops/unboxed.h"

#include "ops/kernel.h"
#include "scope/scoped_value.h"

namespace dtensor::unboxed {

const CachedCall* find_simple(const OpEntry& entry, const CallView& view) {
  if (scopes_watched() && operators_watched()) return nullptr;
  if (view.has_moved_view) return nullptr;  // the boxed kernel brings it up to date
  const auto* call = cache_find_hit(entry.index, view.key);
  return call != nullptr && call->unboxable ? call : nullptr;
}

GatheredOperands::GatheredOperands(const CachedCall& call, Operands operands) {
  for (std::size_t i = 0; i < operands.size() && complete_; ++i) {
    const auto& action = call.inputs[i];
    if (action.plan.empty()) continue;
    const auto& operand = *as_dtensor(operands[i]);
    auto local = has_source(operand) ? provided_by_schedule(operand, *action.to) : at::Tensor();
    complete_ = local.defined();
    locals_.emplace_back(i, std::move(local));
  }
}

}  // namespace dtensor::unboxed
