// Infers results without a meta kernel: sizes from the factors of the rule, strides as TensorIterator computes them,
// and dtypes by the kind of operator.
#include "sharding_prop/operators/output_fallback.h"

#include <ATen/TensorIterator.h>
#include <ATen/native/TypeProperties.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/DefaultDtype.h>
#include <c10/util/strides.h>

#include "sharding_prop/strategies/split_call.h"

namespace dtensor {
namespace {

bool among(const std::string& name, std::initializer_list<const char*> names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// The name of the functional operator without its namespace.
std::string base_of(const OpCall& call) {
  std::string name = call.info->schema().name();
  name.erase(0, name.find("::") + 2);
  if (name.rfind("_foreach_", 0) == 0) name.erase(0, 9);
  if (name.size() > 1 && name.back() == '_' && name[name.size() - 2] != '_') name.pop_back();
  return name;
}

c10::ScalarType floating(c10::ScalarType type) {
  return c10::isIntegralType(type, true) ? c10::get_default_dtype_as_scalartype() : type;
}

// The dtype of result `r`, given the promoted dtype of the operands.
c10::ScalarType result_type(const std::string& name, const OpCall& call, std::size_t r, c10::ScalarType type) {
  if (call.info->schema().returns()[r].name() == "indices") return c10::ScalarType::Long;
  if (name == "huber_loss") return call.operands[0].dtype;  // the loss has the dtype of the input
  if (name == "frexp" && r == 1) return c10::ScalarType::Int;
  if (among(name, {"logical_and", "logical_or", "logical_xor", "logical_not", "isinf", "isin", "isnan", "isfinite"})) {
    return c10::ScalarType::Bool;
  }
  if (among(name, {"count_nonzero", "argmax", "argmin"})) return c10::ScalarType::Long;
  if (name == "_int_mm") return c10::ScalarType::Int;
  if (among(name, {"complex", "polar"})) return c10::toComplexType(type);
  if (among(name, {"abs", "var", "std", "powsum", "linalg__powsum"})) return c10::toRealValueType(type);
  if (among(name, {"var_mean", "std_mean"})) return r == 0 ? c10::toRealValueType(type) : type;
  if (name == "angle") return c10::toRealValueType(floating(type));
  if (among(name, {"native_dropout_backward", "mvlgamma", "logsumexp", "logcumsumexp", "mean", "logit"})) {
    return floating(type);
  }
  if (among(name, {"prod", "nansum", "trace"}) && c10::isIntegralType(type, true)) return c10::ScalarType::Long;
  return type;
}

std::optional<c10::ScalarType> dtype_argument(const OpCall& call) {
  for (const char* name : {"dtype", "out_dtype"}) {
    if (call.has_arg(name) && !call.arg(name).isNone()) return call.arg(name).toScalarType();
  }
  return std::nullopt;
}

// The promoted dtype of the operands, as in TensorIterator, without conditions.
c10::ScalarType promoted_type(const OpCall& call, const std::string& name) {
  at::native::ResultTypeState state = {};
  for (std::size_t i = 0; i < call.operands.size(); ++i) {
    const bool condition = (name == "where" && i == 0) || (name == "masked_fill" && i == 1);
    if (call.operands[i].defined && !condition) {
      state = at::native::update_result_type_state(meta_tensor(call.operands[i]), state);
    }
  }
  return at::native::result_type(state);
}

// The broadcast sizes, and the strides of a new result.
at::Tensor iterate(const OpCall& call) {
  at::TensorIteratorConfig config;
  config.set_check_mem_overlap(false).check_all_same_dtype(false).check_all_same_device(false);
  config.declare_static_dtype(c10::ScalarType::Byte);
  config.add_owned_output(at::Tensor());
  config.declare_static_device(at::Device(c10::DeviceType::Meta));
  for (const Operand& operand : call.operands) {
    if (operand.defined) config.add_owned_const_input(meta_tensor(operand));
  }
  return config.build().output(0);
}

void elementwise_outputs(OpCall& call) {
  const std::string name = base_of(call);
  const c10::ScalarType type = promoted_type(call, name);
  const at::Tensor shape = iterate(call);
  for (std::size_t r = 0; r < call.info->schema().returns().size(); ++r) {
    OutputMeta& meta = call.outputs.emplace_back();
    meta.sizes = shape.sizes();
    // ATen writes the angles of complex numbers into a new contiguous tensor.
    const bool contiguous = name == "angle" && c10::isComplexType(type);
    meta.strides = contiguous ? at::DimVector(c10::contiguous_strides(meta.sizes)) : at::DimVector(shape.strides());
    meta.dtype = dtype_argument(call).value_or(result_type(name, call, r, type));
  }
}

bool is_elementwise(const RuleData& data) {
  const auto regular = [](const Term& term) { return term.ellipsis == 0 && term.dims.empty(); };
  return !data.results.empty() && std::all_of(data.operands.begin(), data.operands.end(), regular) &&
         std::all_of(data.results.begin(), data.results.end(), regular);
}

// Binds factor sizes from the operands only.
BoundRule bind_operands(const OpCall& call, const Rule& rule) {
  BoundRule p;
  p.call = &call;
  p.rule = rule;
  for (const Operand& operand : call.operands) {
    OperandState& state = p.operands.emplace_back();
    state.operand = &operand;
    state.used = operand.defined;
    state.rank = operand.dim();
  }
  bind_rule(p);
  return p;
}

bool add_term_sizes(const BoundRule& p, const Term& term, OutputMeta& meta) {
  const std::size_t letters = p.data->factors.size();
  for (std::size_t i = 0; i <= term.dims.size(); ++i) {
    if (term.ellipsis == static_cast<int>(i)) {
      for (std::size_t b = letters; b < p.factors.size(); ++b) meta.sizes.push_back(p.factors[b].size);
    }
    if (i == term.dims.size()) break;
    std::int64_t size = 1;
    for (const int f : term.dims[i]) size *= p.factors[static_cast<std::size_t>(f)].size;
    if (size < 0) return false;
    meta.sizes.push_back(size);
  }
  return !term.absent;
}

bool factor_outputs(OpCall& call, const Rule& rule) {
  if (rule.data().storage == StorageView::keep) return false;  // the sizes of a view follow from its arguments
  const std::string name = base_of(call);
  const auto& returns = call.info->schema().returns();
  const BoundRule p = bind_operands(call, rule);
  if (rule.data().results.size() != returns.size() || call.operands.empty()) return false;
  std::vector<OutputMeta> outputs;
  for (std::size_t r = 0; r < returns.size(); ++r) {
    OutputMeta& meta = outputs.emplace_back();
    if (!add_term_sizes(p, rule.data().results[r], meta)) return false;
    meta.strides = c10::contiguous_strides(meta.sizes);
    meta.dtype = dtype_argument(call).value_or(result_type(name, call, r, call.operands[0].dtype));
  }
  call.outputs = std::move(outputs);
  return true;
}

// A list of results, each inferred separately.
bool list_outputs(OpCall& call) {
  if (call.info->returns.size() != 1) return false;
  std::vector<OutputMeta> outputs;
  for (int k = 0, length = list_length(call); k < length; ++k) {
    OpCall position;
    position.info = call.info;
    position.args = call.args;
    for (const Operand& operand : call.operands) {
      if (operand.list_index == k) position.operands.push_back(operand);
    }
    const Rule rule = rule_for(position);
    if (is_elementwise(rule.data()))
      elementwise_outputs(position);
    else if (!factor_outputs(position, rule))
      return false;
    outputs.push_back(std::move(position.outputs.at(0)));
  }
  call.outputs = std::move(outputs);
  return true;
}

}  // namespace

at::Tensor meta_tensor(const Operand& operand) {
  at::Tensor tensor =
      at::empty_strided(operand.sizes, operand.strides, at::TensorOptions(operand.dtype).device(c10::DeviceType::Meta));
  if (operand.wrapped_number) tensor.unsafeGetTensorImpl()->set_wrapped_number(true);
  return tensor;
}

namespace {

// The call without its out= tensors, which do not determine the sizes of results.
OpCall without_outs(const OpCall& call) {
  OpCall inputs = call;
  std::erase_if(inputs.operands, [&](const Operand& operand) { return call.info->is_out(operand.arg); });
  return inputs;
}

// Throws if a tensor that is written in place does not have the broadcast sizes of the operands.
void check_written(const OpCall& call) {
  const at::Tensor shape = iterate(call);
  for (const Operand& operand : call.operands) {
    TORCH_CHECK(!call.info->writes(operand.arg) || shape.sizes().equals(operand.sizes), call.info->name(),
                ": output with shape ", at::IntArrayRef(operand.sizes), " doesn't match the broadcast shape ",
                shape.sizes());
  }
}

bool outputs_of_inputs(OpCall& call) {
  try {
    const Rule rule = rule_for(call);
    if (!is_elementwise(rule.data())) return !call.info->inplace && factor_outputs(call, rule);
    if (call.info->inplace) return check_written(call), false;
    return elementwise_outputs(call), true;
  } catch (const std::out_of_range&) {
    return false;  // the rule's function reads results
  }
}

}  // namespace

void apply_out_operands(OpCall& call) {
  std::size_t r = 0;
  for (const Operand& operand : call.operands) {
    if (!call.info->is_out(operand.arg) || r >= call.outputs.size()) continue;
    OutputMeta& meta = call.outputs[r++];
    meta.dtype = operand.dtype;
    if (meta.sizes == operand.sizes) meta.strides = operand.strides;
  }
}

bool outputs_from_rule(OpCall& call) {
  const OpInfo& info = *call.info;
  if (info.rule().data().foreach_op) return !info.has_out && !info.inplace && list_outputs(call);
  if (!info.has_out) return outputs_of_inputs(call);
  OpCall inputs = without_outs(call);
  if (!outputs_of_inputs(inputs)) return false;
  call.outputs = std::move(inputs.outputs);
  return apply_out_operands(call), true;
}

}  // namespace dtensor
