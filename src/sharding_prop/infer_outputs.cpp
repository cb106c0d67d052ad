// Sizes, strides and dtypes of a call's results, by running the operator on meta tensors of the global sizes.
#include <ATen/ops/empty_strided.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "sharding_prop/propagate.h"
#include "sharding_prop/resolve.h"

namespace dtensor {
namespace {

at::Tensor meta_tensor(const Operand& operand) {
  at::Tensor tensor =
      at::empty_strided(operand.sizes, operand.strides, at::TensorOptions(operand.dtype).device(c10::DeviceType::Meta));
  if (operand.wrapped_number) tensor.unsafeGetTensorImpl()->set_wrapped_number(true);
  return tensor;
}

// Tensor arguments are replaced by meta tensors, devices by the meta device, generators by none.
class MetaStack {
 public:
  explicit MetaStack(const OpCall& call) : call_(call) {
    for (std::size_t i = 0; i < call.args.size(); ++i) push(static_cast<int>(i));
  }

  torch::jit::Stack stack;

 private:
  void push(int arg) {
    const c10::IValue& value = call_.args[static_cast<std::size_t>(arg)];
    const bool list =
        next_ < call_.operands.size() && call_.operands[next_].arg == arg && call_.operands[next_].list_index >= 0;
    if (list) return push_list(arg, value);
    if (next_ < call_.operands.size() && call_.operands[next_].arg == arg) return push_operand(value);
    if (value.isDevice()) return stack.emplace_back(at::Device(c10::DeviceType::Meta)), void();
    if (value.isGenerator()) return stack.emplace_back(), void();
    stack.push_back(value);
  }

  at::Tensor take_operand() {
    const Operand& operand = call_.operands[next_++];
    return operand.defined ? meta_tensor(operand) : at::Tensor();
  }

  void push_operand(const c10::IValue& value) {
    at::Tensor tensor = take_operand();
    value.isNone() ? stack.emplace_back() : stack.emplace_back(std::move(tensor));
  }

  void push_list(int arg, const c10::IValue& value) {
    c10::List<at::Tensor> tensors;
    c10::List<std::optional<at::Tensor>> optionals;
    const bool plain = value.isTensorList();
    while (next_ < call_.operands.size() && call_.operands[next_].arg == arg) {
      at::Tensor tensor = take_operand();
      if (plain)
        tensors.push_back(std::move(tensor));
      else
        optionals.push_back(tensor.defined() ? std::optional(std::move(tensor)) : std::nullopt);
    }
    plain ? stack.emplace_back(std::move(tensors)) : stack.emplace_back(std::move(optionals));
  }

  const OpCall& call_;
  std::size_t next_ = 0;
};

OutputMeta read_meta(const at::Tensor& tensor) {
  OutputMeta meta;
  meta.defined = tensor.defined();
  if (!meta.defined) return meta;
  meta.sizes = tensor.sizes();
  meta.strides = tensor.strides();
  meta.offset_delta = tensor.storage_offset();
  meta.dtype = tensor.scalar_type();
  return meta;
}

void read_outputs(const torch::jit::Stack& stack, std::vector<OutputMeta>& outputs) {
  for (const c10::IValue& value : stack) {
    if (value.isTensor()) {
      outputs.push_back(read_meta(value.toTensor()));
    } else if (value.isTensorList()) {
      for (const at::Tensor& tensor : value.toTensorVector()) outputs.push_back(read_meta(tensor));
    } else {
      outputs.emplace_back().defined = false;
    }
  }
}

void run_on_meta(const c10::OperatorHandle& op, OpCall& call) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  // Temporaries of kernels are no DTensors, and no mode sees them.
  const c10::impl::ExcludeDispatchKeyGuard no_modes(
      c10::DispatchKeySet(
          {c10::DispatchKey::DeferredInit, c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot}) |
      c10::autocast_dispatch_keyset);
  MetaStack meta(call);
  op.callBoxed(meta.stack);
  read_outputs(meta.stack, call.outputs);
}

void from_local_outputs(const OpInfo& info, OpCall& call) {
  call.outputs.clear();
  for (const ReturnAlias& value : info.returns) {
    OutputMeta& meta = call.outputs.emplace_back();
    meta.defined = value.is_tensor;
    meta.from_local = value.is_tensor;
  }
}

at::DimVector contiguous_strides(const at::DimVector& sizes) {
  at::DimVector strides(sizes.size(), 1);
  for (std::size_t i = sizes.size(); i-- > 1;) strides[i - 1] = strides[i] * std::max<std::int64_t>(sizes[i], 1);
  return strides;
}

// Sizes by the letters of the rule's text, contiguous, operand 0's dtype.
void outputs_from_letters(const RuleData& data, OpCall& call) {
  std::vector<std::int64_t> sizes(data.factors.size(), -1);
  for (std::size_t i = 0; i < std::min(data.operands.size(), call.operands.size()); ++i) {
    const RuleTerm& dims = data.operands[i].dims;
    if (!call.operands[i].defined || dims.size() != call.operands[i].sizes.size()) continue;
    for (std::size_t d = 0; d < dims.size(); ++d) {
      if (dims[d].size() == 1) sizes[static_cast<std::size_t>(dims[d][0])] = call.operands[i].sizes[d];
    }
  }
  for (const Term& term : data.results) {
    OutputMeta& meta = call.outputs.emplace_back();
    for (const RuleDim& dim : term.dims) {
      std::int64_t size = 1;
      for (const int f : dim) size *= sizes[static_cast<std::size_t>(f)];
      TORCH_CHECK(size >= 0, call.schema->operator_name(), ": rule '", data.text, "' does not give the result's sizes");
      meta.sizes.push_back(size);
    }
    meta.strides = contiguous_strides(meta.sizes);
    meta.dtype = call.operands.at(0).dtype;
  }
}

bool outputs_by_rule(const OpInfo& info, OpCall& call) {
  const RuleData& properties = info.entry->constant.data();
  if (properties.outputs) return call.outputs = properties.outputs(call), true;
  if (!properties.letters_give_sizes) return false;
  return outputs_from_letters(properties, call), true;
}

}  // namespace

void infer_outputs(const c10::OperatorHandle& op, OpCall& call) {
  const OpInfoPtr info = resolve(op);
  call.outputs.clear();
  if (!info->returns_tensor) return from_local_outputs(*info, call);
  if (outputs_by_rule(*info, call)) return;
  if (info->entry->source == RuleSource::rule && !info->dynamic_shape) return run_on_meta(op, call);
  try {
    run_on_meta(op, call);
  } catch (const c10::NotImplementedError&) {
    from_local_outputs(*info, call);  // depends on the data: the replicated result tells
  }
}

}  // namespace dtensor
