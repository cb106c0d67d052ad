// Decides the kind and the FLOPs of an operator by its name, as FlopCounterMode does.
#include "dry_run/operator_counts.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <string>
#include <unordered_map>

#include "dry_run/state.h"
#include "internal/host_work.h"
#include "internal/ranks/named_calls.h"

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

// Of a product [.., m, k] x [.., k, n]; of grouped ones also [g, m, k] x [k, n] with n in groups.
std::int64_t product_flops(const at::Tensor& a, const at::Tensor& b) {
  if (a.dim() < 2 || b.dim() < 2) return 0;
  return 2 * a.numel() * b.size(-1) / (a.dim() == 3 && b.dim() == 2 ? std::max<std::int64_t>(a.size(0), 1) : 1);
}

// Of queries [b, h, s, d] with keys [b, h', t, d] and values [b, h', t, v]. Products with d and with v elements: scores
// and results in forward, in backward the scores again, and two gradients for each of both. A causal mask hides half.
std::int64_t attention_flops(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, bool causal,
                             bool backward) {
  const auto scores = query.numel() / std::max<std::int64_t>(query.size(-1), 1) * key.size(-2);
  const auto all = 2 * scores * (query.size(-1) * (backward ? 3 : 1) + value.size(-1) * (backward ? 2 : 1));
  return causal ? all / 2 : all;
}

// The positions to which a convolution applies its weight: those of the result, or of the input if it is transposed.
std::int64_t positions(const at::Tensor& tensor) {
  return tensor.dim() < 2 || tensor.size(1) == 0 ? 0 : tensor.numel() / tensor.size(1);
}

bool mask_at(const c10::IValue& mask, std::size_t i) { return mask.toBoolList().get(i); }

using Tensor = at::Tensor;
using EventKind = StepTrace::Kind;

// The kind of an operator that is not elementwise, and its FLOPs (null: none), as FlopCounterMode counts them. Except:
// attention under a causal mask has half; the gradient of the weight of a grouped convolution has no products between
// groups; oneDNN's LSTM has its products.
struct Formula {
  EventKind kind;
  std::int64_t (*flops)(Args args, const Tensor& result);
};

std::int64_t flops_of_product(Args a, const Tensor&) { return product_flops(a[0].toTensor(), a[1].toTensor()); }
std::int64_t flops_of_added_product(Args a, const Tensor&) { return product_flops(a[1].toTensor(), a[2].toTensor()); }
std::int64_t flops_of_attention(Args a, const Tensor&) {
  return attention_flops(a[0].toTensor(), a[1].toTensor(), a[2].toTensor(), a[4].toBool(), /*backward=*/false);
}
std::int64_t flops_of_attention_backward(Args a, const Tensor&) {
  return attention_flops(a[1].toTensor(), a[2].toTensor(), a[3].toTensor(), a[7].toBool(), /*backward=*/true);
}
std::int64_t flops_of_convolution(Args a, const Tensor& result) {
  return 2 * a[1].toTensor().numel() * positions(a[6].toBool() ? a[0].toTensor() : result);
}
std::int64_t flops_of_convolution_backward(Args a, const Tensor&) {
  const std::int64_t gradients = mask_at(a[10], 0) + mask_at(a[10], 1);
  return 2 * gradients * a[2].toTensor().numel() * positions(a[a[7].toBool() ? 1 : 0].toTensor());
}

// A product of each row of each step with the weights of the input and of the state.
std::int64_t flops_of_lstm(Args a, const Tensor&) {
  const at::Tensor x = a[0].toTensor();
  return 2 * x.size(0) * x.size(1) * (a[1].toTensor().numel() + a[2].toTensor().numel());
}
std::int64_t flops_of_lstm_backward(Args a, const Tensor& result) { return 2 * flops_of_lstm(a, result); }

const std::unordered_map<std::string, Formula>& formulas() {
  static const Formula product{EventKind::product, flops_of_product}, added{EventKind::product, flops_of_added_product};
  static const Formula norm{EventKind::norm, nullptr};
  static const std::unordered_map<std::string, Formula> all = {
      {"aten::mm", product},
      {"aten::bmm", product},
      {"aten::_grouped_mm", product},
      {"aten::_scaled_mm", product},
      {"aten::addmm", added},
      {"aten::addmm_", added},
      {"aten::baddbmm", added},
      {"aten::baddbmm_", added},
      {"aten::_scaled_dot_product_flash_attention_for_cpu", {EventKind::attention, flops_of_attention}},
      {"aten::_scaled_dot_product_flash_attention_for_cpu_backward",
       {EventKind::attention, flops_of_attention_backward}},
      {"aten::convolution", {EventKind::product, flops_of_convolution}},
      {"aten::convolution_backward", {EventKind::product, flops_of_convolution_backward}},
      {"aten::mkldnn_rnn_layer", {EventKind::product, flops_of_lstm}},
      {"aten::mkldnn_rnn_layer_backward", {EventKind::product, flops_of_lstm_backward}},
      {"aten::native_layer_norm", norm},
      {"aten::native_layer_norm_backward", norm},
      {"aten::_fused_rms_norm", norm},
      {"aten::_fused_rms_norm_backward", norm},
      {"aten::_softmax", norm},
      {"aten::_softmax_backward_data", norm},
      {"aten::_log_softmax", norm},
      {"aten::_log_softmax_backward_data", norm}};
  return all;
}

}  // namespace

OperatorCounter::OperatorCounter(const c10::OperatorHandle& op, Args args) : op_(op) {
  const auto known = formulas().find(op.schema().name());
  if (known != formulas().end()) {
    event_.kind = known->second.kind;
    if (known->second.flops != nullptr) {
      flops_ = [of = known->second.flops, kept = args.vec()](const at::Tensor& result) { return of(kept, result); };
    }
  }
  const auto* first = std::find_if(args.begin(), args.end(), [](const auto& v) { return v.isTensor(); });
  if (first != args.end() && first->toTensor().defined()) event_.dtype = first->toTensor().scalar_type();
  for (const c10::IValue& value : args) event_.bytes += bytes_of(value);
}

namespace {

// Copies between host and device take time for what they move, others on the host for what they read and write.
void count_host_work(StepTrace::Event& event, Args results) {
  const auto work = HostWorkScope::current();
  if (work == HostWork::none) return;
  event.kind = work == HostWork::compute ? EventKind::host : EventKind::transfer;
  if (event.kind == EventKind::transfer) event.bytes = bytes_of(results[0]);
}

}  // namespace

void OperatorCounter::count(const torch::jit::Stack& stack) const {
  State* state = current_state();
  if (state == nullptr) return;
  auto event = event_;
  const Args results = torch::jit::last(stack, op_.schema().returns().size());
  for (const c10::IValue& value : results) event.bytes += bytes_of(value);
  const std::string& name = op_.schema().name();
  DryRunReport::OperatorCount& sum = state->operators[name];
  ++sum.calls;
  if (flops_) event.flops = flops_(results[0].toTensor());
  sum.flops += event.flops;
  sum.bytes += event.bytes;
  event.of_unit = NamedCallScope::current() != nullptr;
  count_host_work(event, results);
  if (state->trace) state->trace->add(event, name);
}

}  // namespace dtensor::dry
