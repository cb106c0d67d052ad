#include "dry_run/operator_counts.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <functional>
#include <unordered_map>

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

// Of attention over queries [.., S, E] and keys [.., T, E]: `products` products of S x T x E.
std::int64_t attention_flops(const at::Tensor& query, const at::Tensor& key, bool causal, std::int64_t products) {
  const auto all = 2 * products * query.numel() * key.size(-2);
  return causal ? all / 2 : all;
}

struct Kinds {
  StepTrace::Kind kind;
  std::function<std::int64_t(Args)> flops;
};

// Operators that are not elementwise, by name.
const std::unordered_map<std::string, Kinds>& known_kinds() {
  using Kind = StepTrace::Kind;
  static const auto product = [](std::size_t first) {
    return [first](Args args) { return product_flops(args[first].toTensor(), args[first + 1].toTensor()); };
  };
  static const std::unordered_map<std::string, Kinds> known = [] {
    std::unordered_map<std::string, Kinds> all;
    for (const char* name : {"aten::mm", "aten::bmm"}) all[name] = {Kind::product, product(0)};
    for (const char* name : {"aten::addmm", "aten::baddbmm", "aten::addmm_", "aten::baddbmm_"}) {
      all[name] = {Kind::product, product(1)};
    }
    all["aten::_scaled_dot_product_flash_attention_for_cpu"] = {
        Kind::attention,
        [](Args args) { return attention_flops(args[0].toTensor(), args[1].toTensor(), args[4].toBool(), 2); }};
    all["aten::_scaled_dot_product_flash_attention_for_cpu_backward"] = {
        Kind::attention,
        [](Args args) { return attention_flops(args[1].toTensor(), args[2].toTensor(), args[7].toBool(), 5); }};
    for (const char* name :
         {"native_layer_norm", "native_layer_norm_backward", "_fused_rms_norm", "_fused_rms_norm_backward", "_softmax",
          "_softmax_backward_data", "_log_softmax", "_log_softmax_backward_data"}) {
      all[std::string("aten::") + name] = {Kind::norm, {}};
    }
    return all;
  }();
  return known;
}

void describe(const std::string& name, Args args, StepTrace::Event& event) {
  const auto known = known_kinds().find(name);
  if (known != known_kinds().end()) {
    event.kind = known->second.kind;
    if (known->second.flops) event.flops = known->second.flops(args);
  }
  const auto* first = std::find_if(args.begin(), args.end(), [](const auto& v) { return v.isTensor(); });
  if (first != args.end() && first->toTensor().defined()) event.dtype = first->toTensor().scalar_type();
}

}  // namespace

OperatorCounter::OperatorCounter(const c10::OperatorHandle& op, Args args) : op_(op) {
  describe(op.schema().name(), args, event_);
  for (const c10::IValue& value : args) event_.bytes += bytes_of(value);
}

void OperatorCounter::count(const torch::jit::Stack& stack) const {
  State* state = current_state();
  if (state == nullptr) return;
  auto event = event_;
  for (const auto& value : torch::jit::last(stack, op_.schema().returns().size())) event.bytes += bytes_of(value);
  const std::string& name = op_.schema().name();
  OperatorCount& sum = state->operators[name];
  ++sum.calls;
  sum.flops += event.flops;
  sum.bytes += event.bytes;
  if (state->trace) state->trace->add(event, name);
}

}  // namespace dtensor::dry
