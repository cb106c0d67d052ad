// CallOperands: the tensor operands of a call, and the key of the decision cache, collected in one pass. The pass
// replaces operands that have newer data elsewhere (substitute_operand) and installs gradient pipelines. The key
// (CallKey) holds, per argument, the interned spec of a DTensor, the metadata of a regular tensor, or the value of any
// other argument (floats only if the rule reads them). KeyBuilder encodes them; a RecentCall compares the same words
// without storing them. Boxed and unboxed kernels build the same key for the same call.
#pragma once

#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>
#include <c10/util/SmallVector.h>

#include <bit>
#include <limits>
#include <string_view>

#include "autograd/gradients/leaf_gradient.h"
#include "comm/record/number_calls.h"
#include "ops/dispatch/operator_entry.h"
#include "scope/scope_frames.h"
#include "tensor/impl/dtensor_impl.h"

namespace dtensor {

// Encodes each kind of argument as words of a key. Self has word(std::uint64_t).
template <class Self>
class KeyBuilder {
 public:
  void integer(std::int64_t value) { number(kInt, static_cast<std::uint64_t>(value), true); }
  void boolean(bool value) { number(kBool, value ? 1 : 0, true); }
  // Numbers to compute with, which ranks compare. `values`: whether the key holds the number, or only its kind (which
  // decides type promotion).
  void scalar(std::int64_t value, bool values) {
    add_scalar(kInt, static_cast<std::uint64_t>(value), at::kLong, values);
  }
  void scalar(bool value, bool values) { add_scalar(kBool, value ? 1 : 0, at::kLong, values); }
  void scalar(double value, bool values) {
    if (C10_UNLIKELY(value != value)) value = std::numeric_limits<double>::quiet_NaN();  // of any sign and payload
    add_scalar(kDouble, std::bit_cast<std::uint64_t>(value), at::kDouble, values);
  }
  void list(std::size_t count) { word(kList | count << 8); }
  void none() { word(kNone); }
  void absent() { word(kAbsent); }
  void device(c10::Device device) { word(kDevice | static_cast<std::uint64_t>(device.type()) << 8); }  // of results
  void text(std::string_view text) {
    word(kString | text.size() << 8);
    for (const char c : text) word(static_cast<std::uint64_t>(c));
  }
  void spec(const TensorSpec* spec) { word(spec_word(spec)); }
  static std::uint64_t spec_word(const TensorSpec* spec) { return reinterpret_cast<std::uint64_t>(spec); }

  CallNumbers numbers;

 protected:
  enum Tag : std::uint64_t {
    kAbsent = 1,
    kRegular,
    kInt,
    kBool,
    kDouble,
    kComplex,
    kNone,
    kList,
    kString,
    kDevice,
    kOther
  };
  void add_scalar(Tag tag, std::uint64_t bits, at::ScalarType type, bool values) {
    numbers.add(bits, type);
    number(tag, bits, values);
  }
  void number(Tag tag, std::uint64_t bits, bool values) {
    word(tag);
    if (values) word(bits);
  }
  void word(std::uint64_t word) { static_cast<Self*>(this)->word(word); }
};

class CallKey : public c10::SmallVector<std::uint64_t, 40>, public KeyBuilder<CallKey> {
 public:
  void word(std::uint64_t word) { push_back(word); }
  void regular(const c10::TensorImpl& impl);
  void value(const c10::IValue& value);
  void scalar(const c10::IValue& value, bool values);
  using KeyBuilder::scalar;
  std::uint64_t hash() const;
};

struct CallOperands {
  CallKey key;
  c10::SmallVector<c10::TensorImpl*, 8> tensors;  // flattened; null: absent
  const MeshInfo* mesh = nullptr;                 // of the first DTensor
  bool has_regular = false;                       // a regular tensor of dimension >= 1
  bool reads_only;                                // operands may be replaced by their reduced forms
  bool key_holds_floats;                          // values of floats are part of the key
  bool has_substituted_operand = false;           // `tensors` differs from the arguments: one was replaced
  bool mixed = false;                             // DTensors of more than one mesh
  bool has_materialized_view = false;             // an operand may be stale (autograd/materialized_view.h)
  std::size_t argument = 0;                       // the next one to add

  explicit CallOperands(const OpEntry& entry) : CallOperands(entry, entry.rule()) {}
  CallOperands(const OpEntry& entry, const OpRule& rule)
      : reads_only(entry.special == nullptr && rule.reads_only), key_holds_floats(rule.reads_scalars), entry_(entry) {}
  CallOperands(const OpEntry& entry, c10::ArrayRef<c10::IValue> args);

  // Adds a list, which may hold hundreds of tensors.
  void add(at::TensorList values) {
    key.list(values.size());
    compares_numbers_ = values.size() < kLongList;
    for (const auto& value : values.slice(add_common_prefix(values))) add(value.unsafeGetTensorImpl());
    compares_numbers_ = true;
  }

  // Collects all properties of an operand in one visit. The operands of a long list do not fit into the L1 cache, so a
  // second visit would cost as much as the first.
  void add(c10::TensorImpl* impl) {
    if (impl == nullptr || !has_dtensor_key(impl)) return add_regular(impl);
    auto* tensor = as_dtensor(impl);
    install_gradient_pipeline(*tensor);
    if (C10_UNLIKELY(tensor->has_alternate_data() || !device_copies_.empty())) tensor = substitute_operand(*tensor);
    tensors.push_back(tensor);
    const auto* spec = tensor->spec().get();
    if (mesh == nullptr) mesh = spec->mesh.get();
    mixed = mixed || spec->mesh.get() != mesh;
    key.spec(spec);
  }

  // Whether no tensor operand is floating point or complex. Then the default dtype, which is not an argument, decides
  // the dtype of a floating-point result.
  bool has_no_floating_operand() const;

  // Whether an operand may be stored in host memory while its mesh computes on a device.
  bool has_host_operand() const { return mixed || (mesh != nullptr && mesh->compute_mesh() != nullptr); }

 private:
  std::size_t add_common_prefix(at::TensorList values);
  void add_regular(c10::TensorImpl* impl);
  void add_number(const c10::TensorImpl& impl);
  DTensorImpl* substitute_operand(DTensorImpl& operand);
  void walk(const OpEntry& entry, c10::ArrayRef<c10::IValue> args);
  DTensorImpl* device_copy_of(DTensorImpl* operand) const;
  void move_operands_to_device(const OpEntry& entry, c10::ArrayRef<c10::IValue> args);

  // Longer lists are visited with as few loads as possible: a fused step has a number for each of its parameters.
  static constexpr std::size_t kLongList = 16;

  const OpEntry& entry_;
  bool compares_numbers_ = true;  // whether 0-dimensional tensors that are added count as numbers
  c10::SmallVector<c10::intrusive_ptr<DTensorImpl>, 1> device_copies_;
};

}  // namespace dtensor
