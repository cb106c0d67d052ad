// Operators on tensors without memory. A fallback kernel of a dispatch key above all backends receives every operator
// of the thread. Composite operators run as usual: what they call comes back here. An operator with a kernel of its own
// is not run if an operand has no values: its results get their sizes from the meta kernel or from the sharding rule.
#include <ATen/ATen.h>
#include <ATen/ExpandUtils.h>
#include <ATen/Parallel.h>
#include <torch/library.h>

#include <unordered_map>

#include "dry_run/operator_counts.h"
#include "dry_run/recurrent.h"
#include "dry_run/state.h"
#include "dtensor/debug.h"
#include "internal/simulated.h"
#include "ops/dispatch/for_each_tensor.h"
#include "sharding_prop/operators/native_kernel.h"
#include "sharding_prop/propagate.h"
#include "tensor/impl/dtensor_impl.h"

namespace dtensor::dry {
namespace {

using torch::jit::Stack;

enum class Kind : std::uint8_t {
  pass,     // runs as usual: composite operators, views
  factory,  // allocates a tensor without values
  read,     // returns a number
  resize,
  write,    // only writes operands, in place
  compute,  // returns new tensors, or writes out= tensors
};

bool is_named(const c10::OperatorHandle& op, std::initializer_list<const char*> names) {
  return std::find(names.begin(), names.end(), op.schema().name()) != names.end();
}

bool only_writes(const OpInfo& info) {
  const auto written = [](const ReturnInfo& value) { return value.write; };
  return info.mutates && !info.has_out && std::all_of(info.returns.begin(), info.returns.end(), written);
}

Kind kind_of(const OpInfo& info) {
  const auto& op = info.op;
  if (is_named(op, {"aten::empty", "aten::empty_strided"})) return Kind::factory;
  if (is_named(op, {"aten::_local_scalar_dense"})) return Kind::read;
  if (is_named(op, {"aten::resize_"})) return Kind::resize;
  if (is_named(op, {"aten::copy_"})) return Kind::write;  // composite, but reads the data
  // Composite, but only their own rules know the sizes: the kernels that they call have no meta kernels.
  if (is_named(op, {"aten::convolution", "aten::convolution_backward"})) return Kind::compute;
  const bool composite = native_kernel(op, c10::DispatchKey::CPU) == nullptr;
  if (composite || info.gives_view || is_named(op, {"aten::set_"})) return Kind::pass;
  return only_writes(info) ? Kind::write : Kind::compute;
}

struct Operator {
  explicit Operator(const c10::OperatorHandle& op) : info(op), kind(kind_of(info)) {}
  OpInfo info;
  Kind kind;
};

// By schema, which lives as long as the operator.
const Operator& operator_of(const c10::OperatorHandle& op) {
  static thread_local std::unordered_map<const void*, std::unique_ptr<Operator>> known;
  auto& entry = known[&op.schema()];
  if (entry == nullptr) entry = std::make_unique<Operator>(op);
  return *entry;
}

bool any_simulated(c10::ArrayRef<c10::IValue> args) {
  bool found = false;
  for (const auto& value : args) for_each_tensor(value, [&](const at::Tensor& t) { found = found || is_simulated(t); });
  return found;
}

void add_operand(OpCall& call, const at::Tensor& tensor, int arg, int list_index) {
  Operand& operand = call.operands.emplace_back();
  operand.arg = arg;
  operand.list_index = list_index;
  operand.defined = tensor.defined();
  if (!operand.defined) return;
  operand.wrapped_number = tensor.unsafeGetTensorImpl()->is_wrapped_number();
  operand.sizes = tensor.sizes();
  operand.strides = tensor.strides();
  operand.strided = tensor.layout() == at::kStrided;
  operand.dtype = tensor.scalar_type();
}

OpCall describe(const OpInfo& info, c10::ArrayRef<c10::IValue> args) {
  OpCall call;
  call.info = &info;
  call.args = args;
  for_each_operand(info, args, [&](std::size_t arg, int position, const c10::IValue& value) {
    add_operand(call, value.isTensor() ? value.toTensor() : at::Tensor(), static_cast<int>(arg), position);
  });
  return call;
}

[[noreturn]] void throw_unknown(const c10::OperatorHandle& op, const char* what) {
  const std::string module = ModuleScope::path();
  TORCH_CHECK(false, op.operator_name(), module.empty() ? "" : " in " + module, ": ", what,
              " depends on values of a tensor, which a dry run does not compute. Skip this where "
              "dtensor::is_dry_run() is true; for a floating-point number that is read, set DryRunOptions::number "
              "(--dtensor-simulate-number)");
}

at::Tensor result_of(const c10::OperatorHandle& op, const OutputMeta& meta) {
  if (!meta.defined) return {};
  if (meta.from_local && meta.sizes.empty()) throw_unknown(op, "the size of a result");
  return simulated_empty_strided(meta.sizes, meta.strides, meta.dtype);
}

void resize(const at::Tensor& tensor, at::IntArrayRef sizes, at::IntArrayRef strides) {
  forget_values(tensor);
  const auto bytes = at::detail::computeStorageNbytes(sizes, strides, tensor.element_size(),
                                                      static_cast<std::size_t>(tensor.storage_offset()));
  grow_simulated_storage(*tensor.storage().unsafeGetStorageImpl(), bytes);
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides);
}

// The flag of GradScaler keeps its value, as in a step with finite gradients; the number of DryRunOptions would be read
// as an infinity, and the optimizer would not step.
bool is_found_inf(const OpInfo& info, std::size_t arg) {
  return arg == 1 && is_named(info.op, {"aten::_amp_foreach_non_finite_check_and_unscale_"});
}

void forget_written(const OpInfo& info, c10::ArrayRef<c10::IValue> args) {
  for (std::size_t i = 0; i < args.size(); ++i) {
    if (info.args[i].mutated && !is_found_inf(info, i))
      for_each_tensor(args[i], [](const at::Tensor& t) { forget_values(t); });
  }
}

// The results of one return, or of the list that is the only return.
c10::IValue result_of_return(const OpCall& call, std::size_t r, c10::ArrayRef<c10::IValue> args) {
  const OpInfo& info = *call.info;
  const ReturnInfo& value = info.returns[r];
  if (value.write) {
    const c10::IValue& written = args[static_cast<std::size_t>(value.arg)];
    if (r < call.outputs.size() && written.isTensor() && call.outputs[r].defined && !call.outputs[r].from_local &&
        !written.toTensor().sizes().equals(call.outputs[r].sizes)) {
      resize(written.toTensor(), call.outputs[r].sizes, call.outputs[r].strides);
    }
    return written;
  }
  if (!value.is_tensor) throw_unknown(info.op, "its result");
  if (!value.is_list) return result_of(info.op, call.outputs.at(r));
  std::vector<at::Tensor> list;
  for (const OutputMeta& meta : call.outputs) list.push_back(result_of(info.op, meta));
  return list;
}

bool is_mask(const at::Tensor& t) { return t.scalar_type() == at::kBool || t.scalar_type() == at::kByte; }

// The indices that masks of known values select, in place of the masks: then the sizes of the result are known.
void replace_known_masks(const OpInfo& info, Stack& stack) {
  if (!is_named(info.op, {"aten::index"})) return;
  const c10::impl::ExcludeDispatchKeyGuard as_usual(kSimulatedKey);
  c10::List<std::optional<at::Tensor>> indices;
  for (const c10::IValue& value : stack.back().toListRef()) {
    const auto index = value.toOptional<at::Tensor>();
    if (!index || !index->defined() || is_simulated(*index) || !is_mask(*index)) {
      indices.push_back(index);
      continue;
    }
    for (const at::Tensor& selected : index->nonzero().unbind(1)) indices.push_back(selected);
  }
  stack.back() = std::move(indices);
}

// masked_select() by a mask of known values.
bool select_by_known_mask(const OpInfo& info, Stack& stack) {
  if (!is_named(info.op, {"aten::masked_select"}) || info.has_out || is_simulated(stack.back().toTensor()))
    return false;
  const at::Tensor self = torch::jit::peek(stack, 0, 2).toTensor(), mask = torch::jit::peek(stack, 1, 2).toTensor();
  std::int64_t count = 0;
  {
    const c10::impl::ExcludeDispatchKeyGuard as_usual(kSimulatedKey);
    count = mask.expand(at::infer_size(self.sizes(), mask.sizes())).sum().item<std::int64_t>();
  }
  torch::jit::drop(stack, 2);
  stack.emplace_back(simulated_empty_strided({count}, {1}, self.scalar_type()));
  return true;
}

// What the CPU's kernel of attention allocates inside, of operands [batch, heads, sequence, features]: scores of a
// block of queries and keys on each thread, in backward with their gradients, and a copy of a gradient whose heads come
// first.
std::int64_t attention_temporaries(const OpInfo& info, c10::ArrayRef<c10::IValue> args) {
  constexpr std::int64_t kKeys = 512, kFloatBytes = sizeof(float);
  const bool backward = is_named(info.op, {"aten::_scaled_dot_product_flash_attention_for_cpu_backward"});
  const at::Tensor q = args[backward ? 1 : 0].toTensor(), k = args[backward ? 2 : 1].toTensor();
  const auto queries = std::min<std::int64_t>(q.size(2), q.size(2) >= 768 ? 256 : q.size(2) >= 192 ? 64 : 32);
  const auto scores = queries * std::min(k.size(2), kKeys);
  const auto block = backward ? 2 * scores + queries : scores + 2 * queries + queries * q.size(3);
  const bool copies = backward && !args[0].toTensor().transpose(1, 2).is_contiguous();
  return kFloatBytes * at::get_num_threads() * block +
         (copies ? static_cast<std::int64_t>(args[0].toTensor().nbytes()) : 0);
}

// The most memory that the CPU's kernel allocates inside. It computes products in float8 from float copies of the
// operands: it makes the second one contiguous, converts each and multiplies it by its scale, then computes the product
// in float and converts that.
std::int64_t temporary_bytes(const OpInfo& info, c10::ArrayRef<c10::IValue> args, const c10::IValue& result) {
  if (is_recurrent(info)) return recurrent_temporaries(info, args);
  if (is_named(info.op, {"aten::_scaled_dot_product_flash_attention_for_cpu",
                         "aten::_scaled_dot_product_flash_attention_for_cpu_backward"})) {
    return attention_temporaries(info, args);
  }
  if (!is_named(info.op, {"aten::_scaled_mm"})) return 0;
  constexpr std::int64_t kFloatBytes = sizeof(float);
  const std::int64_t a = kFloatBytes * args[0].toTensor().numel(), b = kFloatBytes * args[1].toTensor().numel();
  const at::Tensor out = result.toTensor();
  const std::int64_t converted = out.scalar_type() == at::kFloat ? 0 : static_cast<std::int64_t>(out.nbytes());
  const std::int64_t copied = args[1].toTensor().is_contiguous() ? 0 : b / kFloatBytes;
  return copied + std::max({2 * a, a + 2 * b, a + b + kFloatBytes * out.numel() + converted});
}

// An operator that computes: results have sizes only, and values that it writes are unknown from now on.
void compute(const OpInfo& info, Stack& stack) {
  if (select_by_known_mask(info, stack)) return;
  replace_known_masks(info, stack);
  const c10::ArrayRef<c10::IValue> args = torch::jit::last(stack, info.args.size());
  std::vector<c10::IValue> results;
  {
    OpCall call = describe(info, args);
    const c10::impl::ExcludeDispatchKeyGuard as_usual(kSimulatedKey);
    is_recurrent(info) ? void(call.outputs = recurrent_outputs(call)) : infer_outputs(call);
    for (std::size_t r = 0; r < info.returns.size(); ++r) results.push_back(result_of_return(call, r, args));
    forget_written(info, args);
    const std::int64_t inside = results.empty() ? 0 : temporary_bytes(info, args, results[0]);
    // Freed at once: the peak of memory counts it.
    if (inside > 0) simulated_empty_strided({inside}, {1}, at::kByte);
  }
  torch::jit::drop(stack, info.args.size());
  for (auto& result : results) stack.push_back(std::move(result));
}

// An operator whose results are operands that it writes, with unchanged sizes.
void write(const OpInfo& info, Stack& stack) {
  const c10::ArrayRef<c10::IValue> args = torch::jit::last(stack, info.args.size());
  forget_written(info, args);
  std::vector<c10::IValue> results;
  for (const ReturnInfo& value : info.returns) results.push_back(args[static_cast<std::size_t>(value.arg)]);
  torch::jit::drop(stack, info.args.size());
  for (auto& result : results) stack.push_back(std::move(result));
}

// item() of an unknown value: DryRunOptions::number.
void read(const c10::OperatorHandle& op, Stack& stack) {
  const auto tensor = torch::jit::pop(stack).toTensor();
  const auto* state = current_state();
  if (state == nullptr || !state->number || !tensor.is_floating_point()) throw_unknown(op, "a number that is read");
  stack.emplace_back(at::Scalar(*state->number));
}

bool is_on_cpu(const OpInfo& info, c10::ArrayRef<c10::IValue> args) {
  const auto& device = args[static_cast<std::size_t>(info.device_arg)];
  return device.isNone() || device.toDevice().is_cpu();
}

// Returns false if the tensor is to be real.
bool make_factory_result(const OpInfo& info, Stack& stack) {
  const c10::ArrayRef<c10::IValue> args = torch::jit::last(stack, info.args.size());
  if (!is_on_cpu(info, args)) return false;
  Stack meta(args.begin(), args.end());
  meta[static_cast<std::size_t>(info.device_arg)] = c10::Device(c10::kMeta);
  {
    const c10::impl::ExcludeDispatchKeyGuard as_usual(kSimulatedKey);
    info.op.callBoxed(meta);
  }
  const at::Tensor like = meta.back().toTensor();
  if (like.layout() != at::kStrided || !should_simulate(like.scalar_type(), static_cast<std::int64_t>(like.nbytes()))) {
    return false;
  }
  torch::jit::drop(stack, info.args.size());
  stack.emplace_back(simulated_empty_strided(like.sizes(), like.strides(), like.scalar_type()));
  return true;
}

void resize_operand(const OpInfo& info, Stack& stack) {
  const c10::ArrayRef<c10::IValue> args = torch::jit::last(stack, info.args.size());
  const at::Tensor tensor = args[0].toTensor();
  const auto like = at::empty({0}, tensor.options().device(at::kMeta));
  like.resize_(args[1].toDimVector(), args[2].toOptional<at::MemoryFormat>());
  resize(tensor, like.sizes(), like.strides());
  torch::jit::drop(stack, info.args.size());
  stack.emplace_back(tensor);
}

void simulate(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
  const auto below = keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kSimulatedKey);
  if (keys.has(kDTensorKey)) return op.redispatchBoxed(below, stack);
  const Operator& known = operator_of(op);
  const OpInfo& info = known.info;
  if (known.kind == Kind::factory && make_factory_result(info, *stack)) return;
  if (known.kind == Kind::pass || known.kind == Kind::factory) return op.redispatchBoxed(below, stack);
  const c10::ArrayRef<c10::IValue> args = torch::jit::last(*stack, info.args.size());
  const bool simulated = any_simulated(args);
  const OperatorCounter counter(op, args);
  if (!simulated) {
    const c10::impl::ExcludeDispatchKeyGuard as_usual(kSimulatedKey);  // what the kernel allocates, it reads
    op.redispatchBoxed(below, stack);
  } else if (known.kind == Kind::read) {
    read(op, *stack);
  } else if (known.kind == Kind::resize) {
    resize_operand(info, *stack);
  } else {
    known.kind == Kind::write ? write(info, *stack) : compute(info, *stack);
  }
  counter.count(*stack);
}

void register_fallback() {
  // Never destroyed. The handle is volatile so that it is stored and leak checkers find it.
  static c10::RegistrationHandleRAII* volatile handle =
      new c10::RegistrationHandleRAII(c10::Dispatcher::singleton().registerFallback(
          kSimulatedKey, c10::KernelFunction::makeFromBoxedFunction<&simulate>(), "dtensor: operators of a dry run"));
  (void)handle;
}

c10::DispatchKeySet registered_key() {
  register_fallback();
  return c10::DispatchKeySet(kSimulatedKey);
}

}  // namespace

SimulationScope::SimulationScope(StatePtr state)
    : scope_(std::move(state), Recompute::unchanged, OperatorScope::yes), key_(registered_key()) {}

State* current_state() {
  const auto* state = ScopedValue<StatePtr>::current();
  return state == nullptr ? nullptr : state->get();
}

}  // namespace dtensor::dry
