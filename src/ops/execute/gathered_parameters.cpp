// Takes each operand that the call gathers from its schedule; incomplete if a schedule has none.
#include "ops/execute/gathered_parameters.h"

#include "autograd/gradients/parameter_views.h"

namespace dtensor::unboxed {

GatheredOperands::GatheredOperands(const CachedCall& call, Operands operands) {
  for (std::size_t i = 0; i < operands.size() && complete_; ++i) {
    const auto& action = call.inputs[i];
    if (action.plan.empty()) continue;
    const auto& operand = *as_dtensor(operands[i]);
    auto local = has_source(operand) ? find_gathered_by_schedule(operand, *action.to) : at::Tensor();
    complete_ = local.defined();
    locals_.emplace_back(i, std::move(local));
  }
}

}  // namespace dtensor::unboxed
