#include "ops/gathered_operands.h"

#include "autograd/source.h"

namespace dtensor::unboxed {

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
