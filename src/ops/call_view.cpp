// Builds cache keys.
#include "ops/call_view.h"

namespace dtensor {

void CallKey::plain(const c10::TensorImpl& impl) {
  const auto sizes = impl.sizes();
  push_back(kPlain | static_cast<std::uint64_t>(impl.is_wrapped_number()) << 8 |
            static_cast<std::uint64_t>(c10::typeMetaToScalarType(impl.dtype())) << 16 | sizes.size() << 32);
  for (auto size : sizes) push_back(static_cast<std::uint64_t>(size));
  for (auto stride : impl.strides()) push_back(static_cast<std::uint64_t>(stride));
}

void CallKey::value(const c10::IValue& value_in, bool values) {
  if (value_in.isInt()) {
    integer(value_in.toInt(), values);
  } else if (value_in.isNone()) {
    none();
  } else if (value_in.isBool()) {
    boolean(value_in.toBool(), values);
  } else if (value_in.isDouble()) {
    real(value_in.toDouble(), values);
  } else if (value_in.isList()) {
    const auto items = value_in.toListRef();
    list(items.size());
    for (const auto& item : items) value(item, values);
  } else if (value_in.isComplexDouble()) {
    number(kComplex, std::bit_cast<std::uint64_t>(value_in.toComplexDouble().real()), values);
    number(kComplex, std::bit_cast<std::uint64_t>(value_in.toComplexDouble().imag()), values);
  } else if (value_in.isString()) {
    const auto& text = value_in.toStringRef();
    push_back(kString | text.size() << 8);
    for (char c : text) push_back(static_cast<std::uint64_t>(c));
  } else {
    push_back(kOther);  // devices and generators do not change a decision
  }
}

std::uint64_t CallKey::hash() const {
  std::uint64_t hash = 0x9E3779B97F4A7C15ull ^ size();
  for (auto word : *this) {
    hash = (hash ^ word) * 0xff51afd7ed558ccdull;
    hash ^= hash >> 32;
  }
  return hash;
}

CallView::CallView(const OpEntry& entry, c10::ArrayRef<c10::IValue> args) : CallView(entry) {
  const auto tensor = [](const c10::IValue& value) { return value.isTensor() ? value.unsafeToTensorImpl() : nullptr; };
  for (std::size_t i = 0; i < args.size(); ++i) {
    const auto& value = args[i];
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
        for (const auto& item : value.toListRef()) add(tensor(item));
        break;
      case ArgKind::scalar:
        key.value(value, entry.key.scalars);
        break;
      case ArgKind::other:
        key.value(value, true);
    }
  }
}

}  // namespace dtensor
