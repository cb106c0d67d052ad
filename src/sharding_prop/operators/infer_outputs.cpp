// Infers sizes, strides and dtypes of a call's results by running the operator on meta tensors of global sizes.
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/ones.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "internal/aten_scopes.h"
#include "sharding_prop/operators/native_kernel.h"
#include "sharding_prop/operators/output_fallback.h"
#include "sharding_prop/propagate.h"
#include "sharding_prop/rule_book/resolve.h"
#include "sharding_prop/strategies/split_call.h"

namespace dtensor {
namespace {

// Replaces tensor arguments by meta tensors, devices by the meta device, and generators by None.
class MetaArguments {
 public:
  explicit MetaArguments(const OpCall& call) : call_(call) {
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

  at::Tensor bind_operand() {
    const Operand& operand = call_.operands[next_++];
    if (!operand.defined) return {};
    // Shared numbers of a list operator are read on the host.
    const bool numbers = call_.info->rule().data().foreach_op && operand.list_index < 0;
    return numbers ? at::ones(operand.sizes, at::TensorOptions(operand.dtype)) : meta_tensor(operand);
  }

  // A wrapped number keeps its value, on the CPU, as for operators on any device. Python's meta kernels, where they
  // replaced ATen's, receive this value.
  void push_operand(const c10::IValue& value) {
    const bool number = call_.operands[next_].wrapped_number;
    at::Tensor tensor = bind_operand();
    if (number) tensor = value.toTensor();
    value.isNone() ? stack.emplace_back() : stack.emplace_back(std::move(tensor));
  }

  void push_list(int arg, const c10::IValue& value) {
    c10::List<at::Tensor> tensors;
    c10::List<std::optional<at::Tensor>> optionals;
    const bool regular = value.isTensorList();
    while (next_ < call_.operands.size() && call_.operands[next_].arg == arg) {
      at::Tensor tensor = bind_operand();
      if (regular)
        tensors.push_back(std::move(tensor));
      else
        optionals.push_back(tensor.defined() ? std::optional(std::move(tensor)) : std::nullopt);
    }
    regular ? stack.emplace_back(std::move(tensors)) : stack.emplace_back(std::move(optionals));
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

// Whether a kernel called an operator, or a dispatch stub, that has no meta kernel. Other errors of kernels, which may
// be NotImplementedErrors too, have other texts.
bool failed_without_kernel(const c10::Error& error) {
  const std::string& text = error.msg();
  const auto says = [&](const char* part) { return text.find(part) != std::string::npos; };
  return says("no fake impl or Meta kernel registered") || says("with arguments from the 'Meta' backend") ||
         says("with tensor backend other than CPU") || text.rfind("DispatchStub: ", 0) == 0;
}

bool has_empty_operand(const OpCall& call) {
  return std::any_of(call.operands.begin(), call.operands.end(), [](const Operand& operand) {
    return operand.defined && c10::multiply_integers(operand.sizes) == 0;
  });
}

void run_on_meta(OpCall& call) {
  // Temporaries of kernels are regular tensors; neither dispatch modes nor a dry run (Fake) see them.
  const c10::impl::ExcludeDispatchKeyGuard no_modes(
      c10::DispatchKeySet(
          {kMeshScopeKey, c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot, c10::DispatchKey::Fake}) |
      c10::autocast_dispatch_keyset);
  MetaArguments meta(call);
  // LibTorch 2.11 drops the arguments of an operator with several out= before it returns them.
  const torch::jit::Stack kept = meta.stack;
  const NativeMetaKernels as_in_cpp;
  call.info->op.callBoxed(meta.stack);
  read_outputs(meta.stack, call.outputs);
}

// Whether the operator runs on full operands in any case. It then checks the call itself, equally on every rank, and
// its results define the output metadata. A failure on meta tensors, which have no values, is not relevant for such a
// call.
bool is_constrained_by_results(const OpCall& call) { return call.info->rule().entry->source != RuleSource::rule; }

// Whether a failure on meta tensors does not mean that the call is invalid.
bool is_inconclusive(const OpCall& call, const std::exception& error) {
  if (is_constrained_by_results(call)) return true;
  const bool own_sizes = static_cast<bool>(call.info->rule().data().outputs);
  // Meta kernels that select entry 0 (index_add, index_reduce), which an empty operand does not have.
  if (dynamic_cast<const c10::IndexError*>(&error) != nullptr) return own_sizes && has_empty_operand(call);
  const auto* own = dynamic_cast<const c10::Error*>(&error);
  return own != nullptr && failed_without_kernel(*own);
}

// Runs the meta kernel, which checks the call equally on every rank, and fills call.outputs. Its errors are passed to
// the user. Returns false if the operator cannot run on meta tensors.
bool run_meta_kernel(OpCall& call) {
  const OpRule& rule = call.info->rule();
  try {
    run_on_meta(call);
    return true;
  } catch (const std::exception& error) {  // also exceptions of Python
    if (!is_inconclusive(call, error)) throw;
    const auto* own = dynamic_cast<const c10::Error*>(&error);
    // Some kernels check a call before they reach such an operator, so operators with an outputs function are tried
    // again, and so are those that reach it for some operands only (masks among indices).
    const bool always = !rule.data().outputs && !call.info->dynamic_shape;
    if (own != nullptr && failed_without_kernel(*own)) rule.lacks_meta = always;
  }
  return false;
}

void from_local_outputs(OpCall& call) {
  call.outputs.clear();
  for (const ReturnInfo& value : call.info->returns) {
    OutputMeta& meta = call.outputs.emplace_back();
    meta.defined = value.is_tensor;
    meta.from_local = value.is_tensor;
  }
}

// In-place operators return their operands.
void bind_written_outputs(OpCall& call) {
  const std::vector<ResultAlias> aliases = result_aliases(call);
  for (std::size_t r = 0; r < call.outputs.size(); ++r) {
    if (!aliases[r].write || aliases[r].operand < 0 || call.info->inplace_view) continue;
    const Operand& operand = call.operands[static_cast<std::size_t>(aliases[r].operand)];
    OutputMeta& meta = call.outputs[r];
    // Some operators resize what they write; their inferred result is used.
    if (meta.defined && !meta.from_local && at::IntArrayRef(meta.sizes) != operand.sizes) continue;
    call.outputs[r] = {true, false, operand.sizes, operand.strides, 0, operand.dtype};
  }
}

// Neither a meta kernel nor the rule's outputs function gives the sizes. The rule's factors may give them; otherwise
// the operator runs replicated, and its result defines them.
void outputs_without_meta(OpCall& call) {
  call.outputs.clear();
  const bool known = call.info->rule().entry->source == RuleSource::rule && !call.info->dynamic_shape;
  if (known && outputs_from_rule(call)) return;
  from_local_outputs(call);
  bind_written_outputs(call);
  call.runs_replicated = call.info->has_out;
}

// With a sparse operand the operator runs replicated, whatever its rule says.
void outputs_with_sparse_operand(OpCall& call) {
  call.runs_replicated = call.has_sparse_operand = true;
  from_local_outputs(call);
  bind_written_outputs(call);
}

}  // namespace

void infer_outputs(OpCall& call) {
  const OpInfo& info = *call.info;
  call.outputs.clear();
  const auto other = [](const Operand& operand) { return operand.defined && !operand.strided; };
  if (std::any_of(call.operands.begin(), call.operands.end(), other)) return outputs_with_sparse_operand(call);
  if (!info.returns_tensor) return from_local_outputs(call);
  const bool own_kernel = native_kernel(info.op, c10::DispatchKey::Meta) != nullptr;
  const RuleData& rule = info.rule().data();
  // also for operators without an entry in the book
  const bool from_python = info.rule().entry->source == RuleSource::none;
  const bool has_kernel = native_meta_kernel(info.op) != nullptr ||
                          (from_python && info.op.hasKernelForDispatchKey(c10::DispatchKey::Meta));
  const bool asked = !info.rule().lacks_meta && !rule.sizes_from_factors && has_kernel;
  const bool known = asked && run_meta_kernel(call);
  // A composite kernel may choose other strides than the device's kernel. The meta kernel of addbmm_ wrongly keeps the
  // sizes of self.
  if (known && ((own_kernel && !info.inplace) || !rule.outputs)) return;
  call.outputs.clear();
  if (!rule.outputs) return outputs_without_meta(call);
  call.outputs = rule.outputs(call);
  apply_out_operands(call);
}

}  // namespace dtensor
