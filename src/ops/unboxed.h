// Unboxed kernels for the hottest operators: the hit path without a stack of IValues. A template over the operator's
// signature; anything but a simple cache hit goes through the boxed kernel.
#pragma once

#include <ATen/core/boxing/impl/boxing.h>
#include <c10/core/SymIntArrayRef.h>

#include <tuple>

#include "autograd/source.h"
#include "comm/events.h"
#include "ops/cache.h"
#include "ops/inspect_state.h"
#include "ops/kernel.h"

namespace dtensor::unboxed {

// --- key: one overload per argument type ---
inline void note(CallView& view, const at::Tensor& value) { view.add(value.unsafeGetTensorImpl()); }
inline void note(CallView& view, const std::optional<at::Tensor>& value) {
  view.add(value.has_value() ? value->unsafeGetTensorImpl() : nullptr);
}
inline void note(CallView& view, at::TensorList values) { view.add(values); }
inline void note(CallView& view, std::int64_t value) { view.key.integer(value); }
inline void note(CallView& view, const c10::SymInt& value) { view.key.integer(value.expect_int()); }
inline void note(CallView& view, bool value) { view.key.boolean(value); }
inline void note(CallView& view, double value) { view.key.real(value, view.scalars); }
inline void note(CallView& view, const at::Scalar& value) {
  if (value.isFloatingPoint()) return view.key.real(value.toDouble(), view.scalars);
  if (value.isIntegral(false)) return view.key.integer(value.toLong(), view.scalars);
  view.key.value(c10::IValue(value), view.scalars);
}
inline void note(CallView& view, c10::SymIntArrayRef values) {
  view.key.list(values.size());
  for (const auto& value : values) view.key.integer(value.expect_int());
}
inline void note(CallView& view, at::IntArrayRef values) {
  view.key.list(values.size());
  for (auto value : values) view.key.integer(value);
}
inline void note(CallView& view, at::OptionalIntArrayRef values) {
  values.has_value() ? note(view, *values) : view.key.none();
}
inline void note(CallView& view, at::ScalarType value) { view.key.integer(static_cast<std::int64_t>(value)); }
template <std::size_t N>
void note(CallView& view, const std::array<bool, N>& values) {
  view.key.list(N);
  for (bool value : values) view.key.boolean(value);
}
template <class T>
void note(CallView& view, const std::optional<T>& value) {
  if (!value.has_value()) return view.key.none();
  if constexpr (std::is_enum_v<T>) {
    view.key.integer(static_cast<std::int64_t>(*value));
  } else if constexpr (std::is_same_v<T, c10::SymInt> || std::is_arithmetic_v<T> || std::is_same_v<T, at::Scalar>) {
    note(view, *value);
  } else {
    view.key.value(c10::IValue(*value), true);
  }
}
inline void note(CallView& view, std::string_view value) { view.key.value(c10::IValue(std::string(value)), true); }

// A copy to the meta device is no DTensor's business (special/to_copy.cpp), and the key does not hold devices.
inline bool asks_for_meta(const std::optional<at::Device>& value) { return value.has_value() && value->is_meta(); }
template <class T>
bool asks_for_meta(const T&) {
  return false;
}

// --- local arguments ---
inline const at::Tensor& localize(const at::Tensor& value) {
  auto* impl = dtensor_or_null(value);
  return impl == nullptr ? value : impl->local();
}
inline at::Tensor& localize(at::Tensor& value) {
  auto* impl = dtensor_or_null(value);
  return impl == nullptr ? value : const_cast<at::Tensor&>(impl->local());
}
inline std::optional<at::Tensor> localize(const std::optional<at::Tensor>& value) {
  return value.has_value() ? std::optional<at::Tensor>(localize(*value)) : std::nullopt;
}
// The DTensors of a list own their local tensors for as long as the call lasts: counting references to hundreds would
// cost as much as a fused step does. A tensor is a pointer, so a list of pointers is a list of tensors that owns none.
class BorrowedTensors {
 public:
  explicit BorrowedTensors(at::TensorList values) : pointers_(values.size()) {
    static_assert(sizeof(at::Tensor) == sizeof(c10::TensorImpl*) && std::is_standard_layout_v<at::Tensor>);
    for (std::size_t i = 0; i < values.size(); ++i) pointers_[i] = localize(values[i]).unsafeGetTensorImpl();
  }

  operator at::TensorList() const { return {reinterpret_cast<const at::Tensor*>(pointers_.data()), pointers_.size()}; }

 private:
  std::vector<c10::TensorImpl*> pointers_;
};
inline BorrowedTensors localize(at::TensorList values) { return BorrowedTensors(values); }
template <class T>
const T& localize(const T& value) {
  return value;
}

// Argument `I` of the local call: a size list may be replaced by its local value.
template <std::size_t I, class T>
decltype(auto) local_argument(const CachedCall& call, T& value) {
  if constexpr (std::is_same_v<std::remove_cv_t<T>, c10::SymIntArrayRef>) {
    return call.size_patch_arg == static_cast<int>(I) ? c10::SymIntArrayRef(call.size_patch) : value;
  } else {
    (void)call;
    return localize(value);
  }
}

// --- results ---

inline at::Tensor wrap(const OpEntry& entry, const CachedCall& call, const CallView& view, std::size_t index,
                       at::Tensor&& local) {
  const auto& action = call.outputs[index];
  if (!action.spec || !local.defined()) return std::move(local);
  check_local_sizes(entry, call, *action.spec, local);
  if (C10_UNLIKELY(out_of_order(action, local))) local = in_order_of(std::move(local), *action.spec);
  const auto offset = action.base < 0 ? 0 : view.operands[action.base]->storage_offset() + action.offset_delta;
  auto impl = c10::make_intrusive<DTensorImpl>(*action.prototype, std::move(local), offset);
  if (action.base >= 0) impl->become_view_of(*as_dtensor(view.operands[action.base]));
  if (action.source >= 0) inherit_source(*impl, *as_dtensor(view.operands[action.source]));
  return at::Tensor(std::move(impl));
}

template <class Tuple, std::size_t... I>
Tuple wrap_all(const OpEntry& entry, const CachedCall& call, const CallView& view, Tuple&& locals,
               std::index_sequence<I...>) {
  return Tuple(wrap(entry, call, view, I, std::get<I>(std::move(locals)))...);
}

// A simple hit, or null.
const CachedCall* find_simple(const OpEntry& entry, const CallView& view);

template <class... Args>
at::Tensor& first_mutable(at::Tensor& first, Args&&...) {
  return first;
}
template <class... Args>
at::Tensor& first_mutable(const at::Tensor&, Args&&... rest) {
  return first_mutable(std::forward<Args>(rest)...);
}

// The boxed kernel, for whatever is no simple hit.
template <class Ret, class... Args>
Ret run_boxed(const OpEntry& entry, Args... args) {
  auto stack = c10::impl::boxArgs<Args...>(args...);
  run_operator(entry, stack);
  if constexpr (std::is_same_v<Ret, at::Tensor&>) {
    return first_mutable(args...);
  } else if constexpr (!std::is_void_v<Ret>) {
    return c10::impl::PopResult<Ret>::call(stack);
  }
}

template <class Op, class Signature>
struct Kernel;

template <class Op, class Ret, class... Args>
struct Kernel<Op, Ret(Args...)> {
  static inline const OpEntry* entry = nullptr;

  static Ret run(Args... args) {
    if (C10_UNLIKELY((asks_for_meta(args) || ...))) return run_boxed<Ret, Args...>(*entry, args...);
    c10::impl::ExcludeDispatchKeyGuard guard(engine_excluded_keys());
    CallView view(*entry);
    (note(view, args), ...);
    const auto* call = view.exchanged ? nullptr : find_simple(*entry, view);
    if (C10_UNLIKELY(call == nullptr)) return run_boxed<Ret, Args...>(*entry, args...);
    try {
      enter_call(*entry, *view.mesh);
      return hit(*call, view, std::index_sequence_for<Args...>(), args...);
    } catch (...) {
      rethrow_from_call(*entry, *call);
    }
  }

  template <std::size_t... I>
  static Ret hit(const CachedCall& call, const CallView& view, std::index_sequence<I...>, Args... args) {
    if constexpr (std::is_same_v<Ret, at::Tensor>) {
      return wrap(*entry, call, view, 0, Op::call(local_argument<I>(call, args)...));
    } else if constexpr (std::is_same_v<Ret, at::Tensor&>) {
      Op::call(local_argument<I>(call, args)...);
      bump_versions(call, view);
      return first_mutable(args...);
    } else if constexpr (std::is_void_v<Ret>) {
      Op::call(local_argument<I>(call, args)...);
      bump_versions(call, view);
    } else if constexpr (std::is_same_v<Ret, std::vector<at::Tensor>>) {
      auto locals = Op::call(local_argument<I>(call, args)...);
      for (std::size_t i = 0; i < locals.size(); ++i) locals[i] = wrap(*entry, call, view, i, std::move(locals[i]));
      return locals;
    } else {
      return wrap_all(*entry, call, view, Op::call(local_argument<I>(call, args)...),
                      std::make_index_sequence<std::tuple_size_v<Ret>>());
    }
  }
};

// The operator's unboxed kernel as the dispatcher wants it.
template <class Op>
c10::KernelFunction kernel_of(const OpEntry& entry) {
  using K = Kernel<Op, typename Op::schema>;
  K::entry = &entry;
  return c10::KernelFunction::makeFromUnboxedRuntimeFunction(&K::run);
}

// Fills `kernels` with the unboxed kernels by operator name.
std::optional<c10::KernelFunction> find_kernel(const OpEntry& entry);

}  // namespace dtensor::unboxed
