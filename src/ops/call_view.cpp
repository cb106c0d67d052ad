// Builds cache keys.
#include "ops/call_view.h"

#include <c10/core/UndefinedTensorImpl.h>

#include <bit>

namespace dtensor {
namespace {

enum Tag : std::uint64_t { kAbsent = 1, kPlain, kInt, kBool, kDouble, kComplex, kNone, kList, kString, kOther };

// `values`: whether numbers count, or only their kinds (which decide type promotion).
void add_value(CallKey& key, const c10::IValue& value, bool values) {
  const auto number = [&](Tag tag, std::uint64_t bits) {
    key.push_back(tag);
    if (values) key.push_back(bits);
  };
  if (value.isInt()) {
    number(kInt, static_cast<std::uint64_t>(value.toInt()));
  } else if (value.isNone()) {
    key.push_back(kNone);
  } else if (value.isBool()) {
    number(kBool, static_cast<std::uint64_t>(value.toBool()));
  } else if (value.isDouble()) {
    number(kDouble, std::bit_cast<std::uint64_t>(value.toDouble()));
  } else if (value.isList()) {
    const auto list = value.toListRef();
    key.push_back(kList | list.size() << 8);
    for (const auto& entry : list) add_value(key, entry, values);
  } else if (value.isComplexDouble()) {
    number(kComplex, std::bit_cast<std::uint64_t>(value.toComplexDouble().real()));
    number(kComplex, std::bit_cast<std::uint64_t>(value.toComplexDouble().imag()));
  } else if (value.isString()) {
    const auto& text = value.toStringRef();
    key.push_back(kString | text.size() << 8);
    for (char c : text) key.push_back(static_cast<std::uint64_t>(c));
  } else {
    key.push_back(kOther);  // devices and generators do not change a decision
  }
}

}  // namespace

void CallView::add_tensor(c10::TensorImpl* impl) {
  operands.push_back(impl);
  if (has_dtensor_key(impl)) {
    auto* spec = as_dtensor(impl)->spec().get();
    if (mesh == nullptr) mesh = spec->mesh.get();
    key.push_back(reinterpret_cast<std::uint64_t>(spec));
    return;
  }
  const auto sizes = impl->sizes();
  has_plain = has_plain || !sizes.empty();
  key.push_back(kPlain | static_cast<std::uint64_t>(impl->is_wrapped_number()) << 8 |
                static_cast<std::uint64_t>(c10::typeMetaToScalarType(impl->dtype())) << 16 | sizes.size() << 32);
  for (auto size : sizes) key.push_back(static_cast<std::uint64_t>(size));
  for (auto stride : impl->strides()) key.push_back(static_cast<std::uint64_t>(stride));
}

void CallView::add_tensor_value(const c10::IValue& value) {
  auto* impl = value.isTensor() ? value.unsafeToTensorImpl() : nullptr;
  if (impl != nullptr && impl != c10::UndefinedTensorImpl::singleton()) return add_tensor(impl);
  operands.push_back(nullptr);
  key.push_back(kAbsent);
}

CallView::CallView(const OpEntry& entry, c10::ArrayRef<c10::IValue> args) {
  for (std::size_t i = 0; i < args.size(); ++i) {
    const auto& value = args[i];
    switch (entry.args[i].kind) {
      case ArgKind::tensor:
        add_tensor_value(value);
        break;
      case ArgKind::tensor_list:
        if (value.isList()) {
          const auto list = value.toListRef();
          key.push_back(kList | list.size() << 8);
          for (const auto& item : list) add_tensor_value(item);
        } else {
          key.push_back(kNone);
        }
        break;
      case ArgKind::scalar:
        add_value(key, value, entry.key.scalars);
        break;
      case ArgKind::other:
        add_value(key, value, true);
    }
  }
}

std::uint64_t hash_key(c10::ArrayRef<std::uint64_t> key) {
  std::uint64_t hash = 0x9E3779B97F4A7C15ull ^ key.size();
  for (auto word : key) {
    hash = (hash ^ word) * 0xff51afd7ed558ccdull;
    hash ^= hash >> 32;
  }
  return hash;
}

}  // namespace dtensor
