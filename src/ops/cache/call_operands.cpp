// Builds cache keys and collects operands.
#include "ops/cache/call_operands.h"

#include <ATen/core/grad_mode.h>
#include <c10/core/UndefinedTensorImpl.h>

#include <cstring>

#include "autograd/gradients/parameter_views.h"
#include "comm/record/hash.h"
#include "internal/simulated.h"

namespace dtensor {

void CallKey::regular(const c10::TensorImpl& impl) {
  const auto sizes = impl.sizes();
  push_back(kRegular | static_cast<std::uint64_t>(impl.is_wrapped_number()) << 8 |
            static_cast<std::uint64_t>(c10::typeMetaToScalarType(impl.dtype())) << 16 | sizes.size() << 32 |
            static_cast<std::uint64_t>(impl.layout()) << 48);
  for (auto size : sizes) push_back(static_cast<std::uint64_t>(size));
  if (C10_UNLIKELY(impl.layout() != c10::kStrided)) return;
  for (auto stride : impl.strides()) push_back(static_cast<std::uint64_t>(stride));
}

void CallKey::value(const c10::IValue& value_in) {
  if (value_in.isInt()) {
    integer(value_in.toInt());
  } else if (value_in.isNone()) {
    none();
  } else if (value_in.isBool()) {
    boolean(value_in.toBool());
  } else if (value_in.isList()) {
    const auto items = value_in.toListRef();
    list(items.size());
    for (const auto& item : items) value(item);
  } else if (value_in.isString()) {
    text(value_in.toStringRef());
  } else if (value_in.isDevice()) {
    device(value_in.toDevice());
  } else if (value_in.isDouble() || value_in.isComplexDouble()) {
    scalar(value_in, true);
  } else {
    push_back(kOther);  // generators do not change a decision
  }
}

void CallKey::scalar(const c10::IValue& value_in, bool values) {
  if (value_in.isInt()) {
    scalar(value_in.toInt(), values);
  } else if (value_in.isBool()) {
    scalar(value_in.toBool(), values);
  } else if (value_in.isDouble()) {
    scalar(value_in.toDouble(), values);
  } else if (value_in.isComplexDouble()) {
    const auto complex = value_in.toComplexDouble();
    add_scalar(kComplex, std::bit_cast<std::uint64_t>(complex.real()), at::kDouble, values);
    add_scalar(kComplex, std::bit_cast<std::uint64_t>(complex.imag()), at::kDouble, values);
  } else if (value_in.isList()) {
    const auto items = value_in.toListRef();
    list(items.size());
    for (const auto& item : items) scalar(item, values);
  } else {
    value(value_in);
  }
}

std::uint64_t CallKey::hash() const {
  std::uint64_t hash = 0x9E3779B97F4A7C15ull ^ size();
  for (auto word : *this) hash = hash_combine(hash, word);
  return hash;
}

CallOperands::CallOperands(const OpEntry& entry, c10::ArrayRef<c10::IValue> args) : CallOperands(entry) {
  walk(entry, args);
  if (C10_UNLIKELY(has_host_operand())) move_operands_to_device(entry, args);
}

// Adds the DTensors at the beginning of a long list that need neither another operand nor a gradient pipeline. Returns
// their number. Allocates once, since the list of a fused step has hundreds.
std::size_t CallOperands::add_common_prefix(at::TensorList values) {
  constexpr std::size_t kLists = 6;
  const std::size_t count = values.size(), first = tensors.size(), first_word = key.size();
  if (count < kLongList || !device_copies_.empty()) return 0;
  if (key.capacity() < first_word + count) key.reserve(first_word + kLists * count);
  if (tensors.capacity() < first + count) tensors.reserve(first + kLists * count);
  key.resize_for_overwrite(first_word + count);
  tensors.resize_for_overwrite(first + count);
  const TensorSpec* known = nullptr;  // spec whose mesh was already compared
  std::size_t i = 0;
  for (; i < count; ++i) {
    auto* impl = values[i].unsafeGetTensorImpl();
    if (!has_dtensor_key(impl)) break;
    auto* tensor = as_dtensor(impl);
    if (tensor->has_alternate_data() || !has_pipeline_or_needs_none(*tensor)) break;
    const auto* spec = tensor->spec().get();
    if (spec != known) {
      if (mesh == nullptr) mesh = spec->mesh.get();
      mixed = mixed || spec->mesh.get() != mesh;
      known = spec;
    }
    tensors[first + i] = tensor;
    key[first_word + i] = reinterpret_cast<std::uint64_t>(spec);
  }
  key.resize(first_word + i);
  tensors.resize(first + i);
  return i;
}

void CallOperands::add_regular(c10::TensorImpl* impl) {
  const bool absent = impl == nullptr || impl == c10::UndefinedTensorImpl::singleton();
  tensors.push_back(absent ? nullptr : impl);
  if (absent) return key.absent();
  has_regular = has_regular || impl->dim() > 0;
  key.regular(*impl);
  if (impl->dim() == 0 && compares_numbers_ && !entry_.args[argument].mutated) add_number(*impl);
}

// The value of a 0-dimensional tensor in host memory.
void CallOperands::add_number(const c10::TensorImpl& impl) {
  const auto size = impl.dtype().itemsize();
  if (!impl.is_cpu() || !impl.has_storage() || size > sizeof(std::uint64_t) || is_simulating()) return;
  const auto type = c10::typeMetaToScalarType(impl.dtype());
  std::uint64_t bits = 0;
  if (const auto* data = impl.data()) std::memcpy(&bits, data, size);
  key.numbers.add(bits, type);
}

// Replaces an operand by its reduced form or its device copy, if it has one.
DTensorImpl* CallOperands::substitute_operand(DTensorImpl& operand) {
  has_materialized_view = has_materialized_view || operand.is_materialized_view();
  auto* found = device_copy_of(reads_only ? operand.read_source() : &operand);
  has_substituted_operand = has_substituted_operand || found != &operand;
  return found;
}

void CallOperands::walk(const OpEntry& entry, c10::ArrayRef<c10::IValue> args) {
  const auto tensor = [](const c10::IValue& value) { return value.isTensor() ? value.unsafeToTensorImpl() : nullptr; };
  for (std::size_t i = 0; i < args.size(); ++i) {
    const auto& value = args[i];
    argument = i;
    switch (entry.args[i].kind) {
      case ArgKind::tensor:
        add(tensor(value));
        break;
      case ArgKind::tensor_list:
        if (!value.isList()) {
          key.none();
          break;
        }
        key.list(value.toListRef().size());
        compares_numbers_ = value.toListRef().size() < kLongList;
        for (const auto& item : value.toListRef()) add(tensor(item));
        compares_numbers_ = true;
        break;
      case ArgKind::scalar:
        key.scalar(value, key_holds_floats);
        break;
      default:
        key.value(value);
    }
  }
}

namespace {

bool is_stored(const c10::TensorImpl* impl) {
  return impl != nullptr && has_dtensor_key(impl) &&
         static_cast<const DTensorImpl*>(impl)->spec()->mesh->compute_mesh() != nullptr;
}

// Whether a call belongs to the model, which runs on the device: autograd records it. Optimizer steps and casts of
// shards stay on the host.
bool belongs_to_model(const OpEntry& entry, const CallOperands& operands) {
  if (!at::GradMode::is_enabled() || entry.is_cast()) return false;
  return std::any_of(operands.tensors.begin(), operands.tensors.end(),
                     [](auto* impl) { return impl != nullptr && impl->requires_grad(); });
}

}  // namespace

bool CallOperands::has_no_floating_operand() const {
  return std::none_of(tensors.begin(), tensors.end(), [](const auto* impl) {
    if (impl == nullptr || impl->is_wrapped_number()) return false;
    const auto type = c10::typeMetaToScalarType(impl->dtype());
    return c10::isFloatingType(type) || c10::isComplexType(type);
  });
}

DTensorImpl* CallOperands::device_copy_of(DTensorImpl* operand) const {
  for (const auto& impl : device_copies_) {
    if (impl->extras()->stored.get() == operand) return impl.get();
  }
  return operand;
}

// Replaces host operands by device copies and rebuilds the key from the new operands.
void CallOperands::move_operands_to_device(const OpEntry& entry, c10::ArrayRef<c10::IValue> args) {
  if (!reads_only || entry.foreach_op()) return;
  if (!mixed && !belongs_to_model(entry, *this)) return;
  const auto former = std::exchange(tensors, {});
  for (auto* impl : former) {
    if (is_stored(impl)) device_copies_.push_back(make_device_copy(*as_dtensor(impl)));
  }
  if (device_copies_.empty()) return static_cast<void>(tensors = former);
  key.clear();
  key.numbers = {};
  mesh = nullptr;
  mixed = has_regular = has_materialized_view = false;
  walk(entry, args);
  has_substituted_operand = true;
}

}  // namespace dtensor
