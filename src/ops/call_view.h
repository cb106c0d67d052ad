// One pass over a call's arguments: the cache key and the tensor operands. The key holds, per argument, the interned
// spec of a DTensor, the description of a plain tensor, or the value of anything else (floats only where the rule reads
// them). Boxed and unboxed kernels give the same key for the same call.
#pragma once

#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>
#include <c10/util/SmallVector.h>

#include <bit>
#include <string_view>

#include "autograd/leaf_hook.h"
#include "ops/op_entry.h"
#include "scope/scoped_value.h"
#include "tensor/impl/dtensor_impl.h"

namespace dtensor {

// The words of a key, by kind of argument. Self has word(std::uint64_t).
template <class Self>
class KeyWords {
 public:
  // `values`: whether numbers count, or only their kinds (which decide type promotion).
  void integer(std::int64_t value, bool values = true) { number(kInt, static_cast<std::uint64_t>(value), values); }
  void boolean(bool value, bool values = true) { number(kBool, value ? 1 : 0, values); }
  void real(double value, bool values) { number(kDouble, std::bit_cast<std::uint64_t>(value), values); }
  void list(std::size_t count) { word(kList | count << 8); }
  void none() { word(kNone); }
  void absent() { word(kAbsent); }
  void device(c10::Device device) { word(kDevice | static_cast<std::uint64_t>(device.type()) << 8); }  // of results
  void text(std::string_view text) {
    word(kString | text.size() << 8);
    for (const char c : text) word(static_cast<std::uint64_t>(c));
  }
  void spec(const TensorSpec* spec) { word(word_of(spec)); }
  static std::uint64_t word_of(const TensorSpec* spec) { return reinterpret_cast<std::uint64_t>(spec); }

 protected:
  enum Tag : std::uint64_t {
    kAbsent = 1,
    kPlain,
    kInt,
    kBool,
    kDouble,
    kComplex,
    kNone,
    kList,
    kString,
    kDevice,
    kOther,
    kPolicy
  };
  void number(Tag tag, std::uint64_t bits, bool values) {
    word(tag);
    if (values) word(bits);
  }
  void word(std::uint64_t word) { static_cast<Self*>(this)->word(word); }
};

class CallKey : public c10::SmallVector<std::uint64_t, 40>, public KeyWords<CallKey> {
 public:
  void word(std::uint64_t word) { push_back(word); }
  void plain(const c10::TensorImpl& impl);
  void policy(c10::ScalarType accumulate) { push_back(kPolicy | static_cast<std::uint64_t>(accumulate) << 8); }
  void value(const c10::IValue& value, bool values);
  std::uint64_t hash() const;
};

struct CallView {
  CallKey key;
  c10::SmallVector<c10::TensorImpl*, 8> operands;  // flattened; null: absent
  const MeshInfo* mesh = nullptr;                  // of the first DTensor
  bool has_plain = false;                          // a plain operand of dimension >= 1
  bool reads_only;                                 // operands may be exchanged for their reduced forms
  bool scalars;                                    // values of floats are part of the key
  bool exchanged = false;                          // and one was: `operands` is not what the arguments say
  bool mixed = false;                              // DTensors of more than one mesh
  bool has_moved_view = false;                     // an operand's data may have to be fetched (autograd/moved_view.h)

  explicit CallView(const OpEntry& entry) : CallView(entry.rule(), entry.special == nullptr) {}
  CallView(const OpRule& rule, bool plain) : reads_only(plain && rule.reads_only), scalars(rule.reads_scalars) {
    if (C10_UNLIKELY(scopes_watched())) note_policy();
  }
  CallView(const OpEntry& entry, c10::ArrayRef<c10::IValue> args);

  // A list, which may be of hundreds.
  void add(at::TensorList values) {
    key.list(values.size());
    for (const auto& value : values.slice(add_usual(values))) add(value.unsafeGetTensorImpl());
  }

  // All that a call asks of an operand is asked here: a list's operands do not fit into the nearest cache, so that each
  // further look at them would cost as much.
  void add(c10::TensorImpl* impl) {
    if (impl == nullptr || !has_dtensor_key(impl)) return add_plain(impl);
    auto* tensor = as_dtensor(impl);
    watch_leaf(*tensor);
    if (C10_UNLIKELY(tensor->has_other_forms() || !stand_ins_.empty())) tensor = exchange(*tensor);
    operands.push_back(tensor);
    const auto* spec = tensor->spec().get();
    if (mesh == nullptr) mesh = spec->mesh.get();
    mixed = mixed || spec->mesh.get() != mesh;
    key.spec(spec);
  }

  // Whether no operand says in which type fractions are: numbers beside tensors do not. A result that is one is then in
  // the default type, which no argument tells.
  bool lacks_fractions() const;

  // Whether tensors in host memory take part, perhaps beside others.
  bool has_stored() const { return mixed || (mesh != nullptr && mesh->computes() != nullptr); }

 private:
  void note_policy();
  std::size_t add_usual(at::TensorList values);
  void add_plain(c10::TensorImpl* impl);
  DTensorImpl* exchange(DTensorImpl& operand);
  void walk(const OpEntry& entry, c10::ArrayRef<c10::IValue> args);
  DTensorImpl* stand_in_of(DTensorImpl* operand) const;
  void meet_on_device(const OpEntry& entry, c10::ArrayRef<c10::IValue> args);

  c10::SmallVector<c10::intrusive_ptr<DTensorImpl>, 1> stand_ins_;
};

}  // namespace dtensor
