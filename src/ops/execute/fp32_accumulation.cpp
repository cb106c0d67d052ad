// Widens a call's arguments and rounds its results.
#include "ops/execute/fp32_accumulation.h"

#include <ATen/ATen.h>

#include "comm/reduce_policy.h"

namespace dtensor {
namespace {

bool is_partial_sum(const OutputAction& output) {
  if (!output.spec || output.dynamic || output.alias >= 0 || output.detached) return false;
  return std::any_of(output.spec->placements.begin(), output.spec->placements.end(),
                     [](const Placement& p) { return p.is_partial(ReduceOp::sum) || p.is_partial(ReduceOp::avg); });
}

SpecPtr with_type(const SpecPtr& spec, at::ScalarType from, at::ScalarType to) {
  if (!spec || spec->dtype != from) return spec;
  return intern_spec(spec->mesh, spec->placements, spec->sizes, spec->strides, to);
}

std::vector<SpecPtr> with_type(const std::vector<SpecPtr>& specs, at::ScalarType from, at::ScalarType to) {
  std::vector<SpecPtr> result;
  for (const auto& spec : specs) result.push_back(with_type(spec, from, to));
  return result;
}

const at::Tensor* unrounded_of(const CachedCall& call, const CallView& view, std::size_t operand) {
  auto* impl = view.operands[operand];
  if (impl == nullptr || !has_dtensor_key(impl) || !call.inputs[operand].plan.empty()) return nullptr;
  return as_dtensor(impl)->unrounded();
}

}  // namespace

std::unique_ptr<Fp32AccumulationCall> plan_fp32_accumulation(const OpEntry& entry, const CachedCall& call,
                                                             std::string_view kernel) {
  if (accumulation_type() == at::ScalarType::Undefined || entry.mutates || entry.inplace_view || entry.is_random)
    return nullptr;
  if (!entry.returns_tensors_only() || kernel == "embedding_vocab") return nullptr;  // whose sums have one term
  const auto partial = std::find_if(call.outputs.begin(), call.outputs.end(), is_partial_sum);
  if (partial == call.outputs.end()) return nullptr;
  const auto from = partial->spec->dtype, to = communication_dtype(from);
  if (to == at::ScalarType::Undefined) return nullptr;
  auto wide = std::make_unique<Fp32AccumulationCall>(Fp32AccumulationCall{from, to});
  wide->view = std::any_of(call.outputs.begin(), call.outputs.end(), [](const auto& o) { return o.base >= 0; });
  wide->inputs = with_type(call.input_specs, from, to);
  wide->outputs = with_type(call.output_specs, from, to);
  return wide;
}

bool has_unrounded_operand(const CachedCall& call, const CallView& view) {
  for (std::size_t i = 0; i < call.inputs.size(); ++i) {
    if (unrounded_of(call, view, i) != nullptr) return true;
  }
  return false;
}

torch::jit::Stack to_accumulation_dtype(const OpEntry& entry, const CachedCall& call, const CallView& view,
                                        const torch::jit::Stack& stack, std::size_t first) {
  const auto& wide = *call.fp32_accumulation;
  torch::jit::Stack result(stack.begin() + static_cast<std::ptrdiff_t>(first), stack.end());
  std::size_t operand = 0;
  const auto widen = [&](const at::Tensor& local) {
    const auto* unrounded = unrounded_of(call, view, operand++);
    if (unrounded != nullptr) return *unrounded;
    return local.defined() && local.scalar_type() == wide.from ? local.to(wide.to) : local;
  };
  for (std::size_t i = 0; i < result.size(); ++i) {
    auto& value = result[i];
    if (entry.args[i].kind == ArgKind::tensor) {
      auto tensor = widen(value.isTensor() ? value.toTensor() : at::Tensor());
      if (value.isTensor()) value = std::move(tensor);
    } else if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const auto& item : value.toTensorVector()) list.push_back(widen(item));
      value = std::move(list);
    } else if (entry.args[i].kind == ArgKind::tensor_list && value.isList()) {
      operand += value.toListRef().size();  // optional indices
    }
  }
  for (std::size_t i = 0; i < result.size(); ++i) {
    if (entry.args[i].kind == ArgKind::dtype && result[i].isInt() &&
        result[i].toInt() == static_cast<std::int64_t>(wide.from)) {
      result[i] = static_cast<std::int64_t>(wide.to);
    }
  }
  return result;
}

std::vector<at::Tensor> round_to_result_dtype(const CachedCall& call, torch::jit::Stack& results) {
  std::vector<at::Tensor> unrounded(results.size());
  for (std::size_t r = 0; r < results.size(); ++r) {
    const auto& output = call.outputs[r];
    auto value = results[r].toTensor();
    if (!value.defined() || !output.spec || value.scalar_type() != call.fp32_accumulation->to) continue;
    if (output.spec->dtype != call.fp32_accumulation->from) continue;
    results[r] = value.to(call.fp32_accumulation->from);
    if (is_partial_sum(output)) unrounded[r] = std::move(value);
  }
  return unrounded;
}

void store_unrounded(const std::vector<at::Tensor>& unrounded, const torch::jit::Stack& stack, std::size_t first) {
  for (std::size_t r = 0; r < unrounded.size(); ++r) {
    if (!unrounded[r].defined()) continue;
    dtensor_or_null(stack[first + r].toTensor())->store_unrounded(unrounded[r]);
  }
}

}  // namespace dtensor
