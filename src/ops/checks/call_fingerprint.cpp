// Fingerprints of operator calls. The text of a call is made once per decision from the cache key. It omits everything
// that differs between ranks or processes (addresses, local sizes, strides of regular tensors). Values outside the key
// (floats, numbers in 0-dim tensors, the position in the random number stream) are added at each call.
#include "ops/checks/call_fingerprint.h"

#include <ATen/SequenceNumber.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/graph_task.h>

#include <bit>
#include <cstring>
#include <sstream>

#include "comm/record/call_history.h"
#include "comm/record/caller.h"
#include "comm/record/hash.h"
#include "comm/record/interned_text.h"
#include "dtensor/debug.h"
#include "mesh/world_state.h"
#include "ops/dispatch/for_each_tensor.h"
#include "tensor/impl/call_order.h"

namespace dtensor {
namespace {

using Operands = c10::ArrayRef<c10::TensorImpl*>;
using Args = c10::ArrayRef<c10::IValue>;

constexpr std::size_t kShownTensors = 3;  // per list

// Whether an operand is a 0-dim regular tensor on the CPU. Its value is compared like that of a float.
bool is_number(const c10::TensorImpl* impl) {
  return impl != nullptr && !has_dtensor_key(impl) && impl->dim() == 0 && impl->is_cpu() && impl->has_storage() &&
         impl->dtype().itemsize() <= 16 && impl->data() != nullptr;
}

// --- text ---

class Words {
 public:
  Words(const OpEntry& entry, Args args, Operands operands) : operands_(operands) {
    text_ << entry.text() << '(';
    for (std::size_t i = 0; i < args.size(); ++i) {
      if (args[i].isNone() && !entry.args[i].holds_tensors()) continue;
      text_ << (i > 0 ? ", " : "");
      add(args[i], entry.args[i]);
    }
    text_ << ')';
    if (entry.is_random) text_ << " as random operator %";
  }

  CallFingerprint result() const {
    const auto text = text_.str();
    return {hash_combine(hash_, hash_of(text)), &interned_string(text)};
  }

 private:
  void add(const c10::IValue& value, const ArgInfo& info) {
    if (info.kind == ArgKind::tensor) return operand(true, info.mutated);
    if (info.kind == ArgKind::scalar) return number(value);
    if (info.kind != ArgKind::tensor_list || !value.isList()) return other(value);
    const auto count = value.toListRef().size();
    text_ << '[';
    for (std::size_t k = 0; k < count; ++k) {
      text_ << (k > 0 && k < kShownTensors ? ", " : "");
      operand(k < kShownTensors, info.mutated);
    }
    text_ << (count > kShownTensors ? ", ...] of " + std::to_string(count) : "]");
  }

  void operand(bool shown, bool mutated) {
    const auto* impl = operands_[next_++];
    std::string words = "none";
    if (impl != nullptr && has_dtensor_key(impl)) {
      const auto& spec = *static_cast<const DTensorImpl*>(impl)->spec();
      words = spec.str();
      for (const auto stride : spec.strides) hash_ = hash_combine(hash_, static_cast<std::uint64_t>(stride));
    } else if (impl != nullptr) {
      const auto type = c10::typeMetaToScalarType(impl->dtype());
      words = is_number(impl) && !mutated ? "%" : c10::str("regular ", c10::toString(type), impl->sizes());
    }
    hash_ = hash_combine(hash_, hash_of(words));
    if (shown) text_ << words;
  }

  void number(const c10::IValue& value) {
    if (value.isList()) {
      for (const auto& item : value.toListRef()) number(item), text_ << ' ';
    } else {
      text_ << '%';
    }
  }

  void other(const c10::IValue& value) {
    if (value.isInt() || value.isBool() || value.isString() || value.isIntList() || value.isBoolList()) {
      text_ << value;
    } else if (value.isDevice()) {
      text_ << value.toDevice().type();
    } else {
      text_ << value.tagKind();
    }
  }

  Operands operands_;
  std::size_t next_ = 0;
  std::uint64_t hash_ = 0;
  std::ostringstream text_;
};

// --- numbers ---

class Numbers {
 public:
  explicit Numbers(std::uint64_t hash) : hash(hash) {}

  void add(double shown_as, std::uint64_t bits) {
    hash = hash_combine(hash, bits);
    if (shown.size() < OperatorCall::kMaxNumbers) shown.push_back(shown_as);
  }
  void add(const c10::IValue& value) {
    if (value.isInt()) return add(static_cast<double>(value.toInt()), static_cast<std::uint64_t>(value.toInt()));
    if (value.isDouble()) return add(value.toDouble(), std::bit_cast<std::uint64_t>(value.toDouble()));
    if (value.isBool()) return add(value.toBool() ? 1 : 0, value.toBool() ? 1 : 0);
    if (value.isComplexDouble()) {
      const auto number = value.toComplexDouble();
      hash = hash_combine(hash, std::bit_cast<std::uint64_t>(number.imag()));
      return add(number.real(), std::bit_cast<std::uint64_t>(number.real()));
    }
    if (!value.isList()) return;
    for (const auto& item : value.toListRef()) add(item);
  }
  void add(const c10::TensorImpl& impl) {
    std::uint64_t bits[2] = {0, 0};
    std::memcpy(bits, impl.data(), impl.dtype().itemsize());
    hash = hash_combine(hash, bits[1]);
    const auto type = c10::typeMetaToScalarType(impl.dtype());
    double value = static_cast<double>(bits[0]);
    if (type == c10::ScalarType::Double) value = std::bit_cast<double>(bits[0]);
    if (type == c10::ScalarType::Float) value = std::bit_cast<float>(static_cast<std::uint32_t>(bits[0]));
    if (type == c10::ScalarType::Long) value = static_cast<double>(std::bit_cast<std::int64_t>(bits[0]));
    add(value, bits[0]);
  }

  std::uint64_t hash;
  c10::SmallVector<double, OperatorCall::kMaxNumbers> shown;
};

// Adds the numbers in the order of their placeholders in the text.
void add_numbers(Numbers& numbers, const OpEntry& entry, Args args, Operands operands) {
  std::size_t next = 0;
  for (std::size_t i = 0; i < args.size(); ++i) {
    const auto& info = entry.args[i];
    if (info.kind == ArgKind::scalar) numbers.add(args[i]);
    const bool list = info.kind == ArgKind::tensor_list && args[i].isList();
    const std::size_t count = list ? args[i].toListRef().size() : info.kind == ArgKind::tensor ? 1 : 0;
    for (const auto end = next + count; next < end; ++next) {
      if (!info.mutated && is_number(operands[next])) numbers.add(*operands[next]);
    }
  }
}

// --- module ---

// The module of a call: in forward the current module scope, in backward the scope in which the autograd node was
// created.
const std::string* current_module(CallHistory& history) {
  const auto* module = interned_module_path(ModuleScope::path());
  if (torch::autograd::get_current_graph_task_id() < 0) {
    const auto nodes = at::sequence_number::peek();
    if (module != nullptr && at::GradMode::is_enabled() && nodes > 0) history.note_node(nodes - 1, module);
    return module;
  }
  if (module != nullptr) return module;  // recomputation in backward
  const auto node = torch::autograd::get_current_node();
  const auto* made_in = node ? history.module_of_node(node->sequence_nr()) : nullptr;
  return backward_pass_of(made_in == nullptr ? "" : *made_in);
}

void note(const OpEntry& entry, Args args, Operands operands, const MeshImpl& mesh, const CallFingerprint& words) {
  auto& history = mesh.history();
  if (!is_call_order_deterministic()) return;
  Numbers numbers(words.hash);
  for (const auto* impl : operands) {
    if (impl == nullptr || !has_dtensor_key(impl)) continue;
    const auto& tensor = *static_cast<const DTensorImpl*>(impl);
    // Tensors of another mesh have their own numbering, and that mesh may exclude ranks of this one.
    if (tensor.spec()->mesh.get() == &mesh) numbers.hash = hash_combine(numbers.hash, tensor.origin());
  }
  add_numbers(numbers, entry, args, operands);
  if (entry.is_random) {
    const auto state = mesh.state().rng();
    numbers.add(static_cast<double>(state.counter), hash_combine(state.seed, state.counter));
  }
  history.add({numbers.hash, words.text, current_module(history), numbers.shown});
}

void count_result(const at::Tensor& result) {
  auto* impl = dtensor_or_null(result);
  if (impl != nullptr && impl->origin() == 0) impl->count_origin();
}

}  // namespace

void count_call_results(const OpEntry& entry, const torch::jit::Stack& stack) {
  for (auto r = stack.size() - entry.returns.size(); r < stack.size(); ++r) for_each_tensor(stack[r], count_result);
}

void record_call_fingerprint(const OpEntry& entry, Args args, const CallOperands& operands, const CachedCall& call) {
  if (call.fingerprint.text == nullptr) call.fingerprint = Words(entry, args, operands.tensors).result();
  note(entry, args, operands.tensors, as_mesh_impl(*operands.mesh), call.fingerprint);
}

void record_special_call_fingerprint(const OpEntry& entry, Args args) {
  c10::SmallVector<c10::TensorImpl*, 8> operands;
  const MeshInfo* mesh = nullptr;
  for_each_operand(entry, args, [&](std::size_t, int, const c10::IValue& value) {
    auto* impl = value.isTensor() && value.toTensor().defined() ? value.unsafeToTensorImpl() : nullptr;
    operands.push_back(impl);
    if (impl != nullptr && has_dtensor_key(impl) && mesh == nullptr) mesh = as_dtensor(impl)->spec()->mesh.get();
  });
  if (mesh != nullptr) note(entry, args, operands, as_mesh_impl(*mesh), Words(entry, args, operands).result());
}

}  // namespace dtensor
