// Sizes, strides and dtypes of a call's results, by running the operator on meta tensors of the global sizes.
#include <ATen/ops/empty_strided.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "sharding_prop/build.h"
#include "sharding_prop/output_fallback.h"
#include "sharding_prop/propagate.h"
#include "sharding_prop/resolve.h"

namespace dtensor {
namespace {

// Tensor arguments are replaced by meta tensors, devices by the meta device, generators by none.
class MetaStack {
 public:
  MetaStack(const OpInfo& info, const OpCall& call) : info_(info), call_(call) {
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
    if (!operand.defined) return {};
    // Numbers for all positions of a list operator are read on the host.
    const bool numbers = info_.is_list && operand.list_index < 0;
    return numbers ? at::ones(operand.sizes, at::TensorOptions(operand.dtype)) : meta_tensor(operand);
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

  const OpInfo& info_;
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

void run_on_meta(const OpInfo& info, const c10::OperatorHandle& op, OpCall& call) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  // Temporaries of kernels are no DTensors, and no mode sees them.
  const c10::impl::ExcludeDispatchKeyGuard no_modes(
      c10::DispatchKeySet(
          {c10::DispatchKey::DeferredInit, c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot}) |
      c10::autocast_dispatch_keyset);
  MetaStack meta(info, call);
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

bool outputs_by_rule(const OpInfo& info, OpCall& call) {
  const RuleData& properties = info.entry->constant.data();
  if (properties.outputs) return call.outputs = properties.outputs(call), true;
  return properties.letters_give_sizes && outputs_from_rule(info, call);
}

// In-place operators return their operands.
void take_written_outputs(const OpInfo& info, OpCall& call) {
  const std::vector<ResultAlias> aliases = result_aliases(info, call);
  for (std::size_t r = 0; r < call.outputs.size(); ++r) {
    if (!aliases[r].write || aliases[r].operand < 0 || info.inplace_view) continue;
    const Operand& operand = call.operands[static_cast<std::size_t>(aliases[r].operand)];
    OutputMeta& meta = call.outputs[r];
    // Some resize what they write: their result takes its place.
    if (meta.defined && !meta.from_local && at::IntArrayRef(meta.sizes) != operand.sizes) continue;
    call.outputs[r] = {true, false, operand.sizes, operand.strides, 0, operand.dtype};
  }
}

void outputs_without_meta(const OpInfo& info, OpCall& call) {
  call.outputs.clear();
  const bool known = info.entry->source == RuleSource::rule && !info.dynamic_shape;
  if (known && outputs_from_rule(info, call)) return;
  // Neither a meta kernel nor the rule tells the sizes: it runs whole, right though slow.
  from_local_outputs(info, call);  // the replicated result tells
  take_written_outputs(info, call);
}

// No kernel for meta tensors, or one that ends at a table of devices' kernels.
bool lacks_kernel(const c10::Error& error) {
  return dynamic_cast<const c10::NotImplementedError*>(&error) != nullptr ||
         error.msg().find("DispatchStub: unsupported device type") != std::string::npos;
}

}  // namespace

void infer_outputs(const c10::OperatorHandle& op, OpCall& call) {
  const OpInfoPtr info = resolve(op);
  call.outputs.clear();
  if (!info->returns_tensor) return from_local_outputs(*info, call);
  if (outputs_by_rule(*info, call)) return;
  if (info->lacks_meta) return outputs_without_meta(*info, call);
  try {
    run_on_meta(*info, op, call);
  } catch (const c10::Error& error) {
    if (!lacks_kernel(error)) throw;
    info->lacks_meta = true;
    outputs_without_meta(*info, call);
  }
}

}  // namespace dtensor
