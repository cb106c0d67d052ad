#include "dry_run/operator_counts.h"

#include <ATen/core/Tensor.h>

#include "dry_run/state.h"

namespace dtensor::dry {
namespace {

using Args = c10::ArrayRef<c10::IValue>;

std::int64_t bytes_of(const c10::IValue& value) {
  if (value.isTensor()) return value.toTensor().defined() ? static_cast<std::int64_t>(value.toTensor().nbytes()) : 0;
  if (!value.isList()) return 0;
  std::int64_t bytes = 0;
  for (const c10::IValue& item : value.toListRef()) bytes += item.isTensor() ? bytes_of(item) : 0;
  return bytes;
}

// Of a product [.., m, k] x [.., k, n].
std::int64_t product_flops(const at::Tensor& a, const at::Tensor& b) {
  return a.dim() < 2 || b.dim() < 2 ? 0 : 2 * a.numel() * b.size(-1);
}

std::int64_t flops_of(const std::string& name, Args args) {
  const auto tensor = [&](std::size_t i) { return args[i].toTensor(); };
  if (name == "aten::mm" || name == "aten::bmm") return product_flops(tensor(0), tensor(1));
  if (name == "aten::addmm" || name == "aten::baddbmm" || name == "aten::addmm_" || name == "aten::baddbmm_") {
    return product_flops(tensor(1), tensor(2));
  }
  return 0;
}

}  // namespace

OperatorCounter::OperatorCounter(const c10::OperatorHandle& op, Args args) : op_(op) {
  flops_ = flops_of(op.schema().name(), args);
  for (const c10::IValue& value : args) bytes_ += bytes_of(value);
}

void OperatorCounter::count(const torch::jit::Stack& stack) const {
  State* state = current_state();
  if (state == nullptr) return;
  OperatorCount& sum = state->operators[op_.schema().name()];
  ++sum.calls;
  sum.flops += flops_;
  sum.bytes += bytes_;
  for (const c10::IValue& value : torch::jit::last(stack, op_.schema().returns().size())) sum.bytes += bytes_of(value);
}

}  // namespace dtensor::dry
