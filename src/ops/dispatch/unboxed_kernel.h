// Unboxed kernels for the most frequent operators: the hit path without a stack of IValues. They are one template over
// the operator's signature. Calls that are not simple cache hits go through the boxed kernel.
#pragma once

#include <ATen/core/boxing/impl/boxing.h>
#include <c10/core/SymIntArrayRef.h>

#include <tuple>

#include "autograd/gradients/parameter_views.h"
#include "comm/event_listeners.h"
#include "comm/record/caller.h"
#include "ops/cache/decision_cache.h"
#include "ops/cache/recent_call.h"
#include "ops/checks/inspect_state.h"
#include "ops/dispatch/boxed_kernel.h"
#include "ops/execute/gathered_parameters.h"
#include "scope/scope_frames.h"

namespace dtensor::unboxed {

// --- key: one overload per argument type; Receiver: CallOperands or RecentCall ---
template <class Receiver>
void add_argument(Receiver& to, const at::Tensor& value) {
  to.add(value.unsafeGetTensorImpl());
}
template <class Receiver>
void add_argument(Receiver& to, const std::optional<at::Tensor>& value) {
  to.add(value.has_value() ? value->unsafeGetTensorImpl() : nullptr);
}
template <class Receiver>
void add_argument(Receiver& to, at::TensorList values) {
  to.add(values);
}
template <class Receiver>
void add_argument(Receiver& to, std::int64_t value) {
  to.key.integer(value);
}
template <class Receiver>
void add_argument(Receiver& to, const c10::SymInt& value) {
  to.key.integer(value.expect_int());
}
template <class Receiver>
void add_argument(Receiver& to, bool value) {
  to.key.boolean(value);
}
template <class Receiver>
void add_argument(Receiver& to, double value) {
  to.key.scalar(value, to.key_holds_floats);
}
template <class Receiver>
void add_argument(Receiver& to, const at::Scalar& value) {
  if (value.isFloatingPoint()) return to.key.scalar(value.toDouble(), to.key_holds_floats);
  if (value.isIntegral(false)) return to.key.scalar(value.toLong(), to.key_holds_floats);
  to.key.scalar(c10::IValue(value), to.key_holds_floats);
}
template <class Receiver>
void add_argument(Receiver& to, c10::SymIntArrayRef values) {
  to.key.list(values.size());
  for (const auto& value : values) to.key.integer(value.expect_int());
}
template <class Receiver>
void add_argument(Receiver& to, at::IntArrayRef values) {
  to.key.list(values.size());
  for (auto value : values) to.key.integer(value);
}
template <class Receiver>
void add_argument(Receiver& to, at::OptionalIntArrayRef values) {
  values.has_value() ? add_argument(to, *values) : to.key.none();
}
template <class Receiver>
void add_argument(Receiver& to, at::ScalarType value) {
  to.key.integer(static_cast<std::int64_t>(value));
}
template <class Receiver, std::size_t N>
void add_argument(Receiver& to, const std::array<bool, N>& values) {
  to.key.list(N);
  for (bool value : values) to.key.boolean(value);
}
template <class Receiver, class T>
void add_argument(Receiver& to, const std::optional<T>& value) {
  if (!value.has_value()) return to.key.none();
  if constexpr (std::is_enum_v<T>) {
    to.key.integer(static_cast<std::int64_t>(*value));
  } else if constexpr (std::is_same_v<T, c10::Device>) {
    to.key.device(*value);
  } else if constexpr (std::is_same_v<T, c10::SymInt> || std::is_arithmetic_v<T> || std::is_same_v<T, at::Scalar>) {
    add_argument(to, *value);
  } else {
    to.key.value(c10::IValue(*value));
  }
}
template <class Receiver>
void add_argument(Receiver& to, std::string_view value) {
  to.key.text(value);
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
// A TensorList of local tensors without ownership: at::Tensor is one pointer, and the DTensors keep their local tensors
// alive during the call. Reference counts for hundreds of tensors would cost as much as a fused optimizer step.
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

// --- the local call ---

template <class T>
c10::DispatchKeySet keys_of(const T&) {
  return {};
}
inline c10::DispatchKeySet keys_of(const at::Tensor& value) { return value.key_set(); }
inline c10::DispatchKeySet keys_of(const std::optional<at::Tensor>& value) {
  return value.has_value() ? value->key_set() : c10::DispatchKeySet();
}
// Lists take the ordinary dispatch, which is as fast for them.
inline c10::DispatchKeySet keys_of(const BorrowedTensors&) { return c10::DispatchKeySet(c10::DispatchKeySet::FULL); }

// Keys above the backend. They already handled the call on DTensors, so the local call on dense tensors skips them.
inline constexpr auto kKeysAbove = c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::autocast_dispatch_keyset;

inline bool is_dense(c10::DispatchKeySet keys) {
  const auto below = keys - kKeysAbove;
  return below == c10::DispatchKeySet(c10::DispatchKey::CPU) || below == c10::DispatchKeySet(c10::DispatchKey::CUDA);
}

template <class Op, class... Args>
decltype(auto) call_local(Args&&... args) {
  const auto keys = (keys_of(args) | ... | c10::DispatchKeySet());
  if (C10_LIKELY(is_dense(keys))) return Op::redispatch(keys - kKeysAbove, std::forward<Args>(args)...);
  return Op::call(std::forward<Args>(args)...);
}

// A cache hit with everything that its execution needs.
struct Hit {
  const OpEntry& entry;
  const CachedCall& call;
  Operands operands;
  ThreadState& thread;
  const CallNumbers& numbers;
};

// --- results ---

inline at::Tensor wrap(const Hit& hit, std::size_t index, at::Tensor&& local) {
  const auto& [entry, call, operands, thread, numbers] = hit;
  const auto& action = call.outputs[index];
  if (!action.spec || !local.defined()) return action.undefined ? at::Tensor() : std::move(local);
  check_local_sizes(entry, call, *action.spec, local);
  if (C10_UNLIKELY(has_wrong_stride_order(action, local))) local = to_stride_order(std::move(local), *action.spec);
  const auto offset = action.base < 0 ? 0 : operands[action.base]->storage_offset() + action.offset_delta;
  auto* result = new (thread) DTensorImpl(*action.prototype, std::move(local), offset);
  auto impl = c10::intrusive_ptr<DTensorImpl>::unsafe_steal_from_new(result);
  if (action.base >= 0) impl->set_view_base(*as_dtensor(operands[action.base]));
  if (action.source >= 0) inherit_source(*impl, *as_dtensor(operands[action.source]));
  return at::Tensor(std::move(impl));
}

template <class Tuple, std::size_t... I>
Tuple wrap_all(const Hit& hit, Tuple&& locals, std::index_sequence<I...>) {
  return Tuple(wrap(hit, I, std::get<I>(std::move(locals)))...);
}

// The cached call if the unboxed kernel can run it, otherwise null.
inline const CachedCall* find_simple(const OpEntry& entry, const CallOperands& operands) {
  if (any_operator_scope() && any_scope_needs_boxed_kernel()) return nullptr;
  if (operands.has_materialized_view) return nullptr;  // the boxed kernel updates its data
  return find_unboxable_call(entry.index, operands.key);
}

template <class... Args>
at::Tensor& first_mutable(at::Tensor& first, Args&&...) {
  return first;
}
template <class... Args>
at::Tensor& first_mutable(const at::Tensor&, Args&&... rest) {
  return first_mutable(std::forward<Args>(rest)...);
}

// Runs a call that is not a simple hit by the boxed kernel.
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

template <class... Args>
constexpr bool begins_with_tensor = false;
template <class First, class... Rest>
constexpr bool begins_with_tensor<First, Rest...> = std::is_same_v<std::remove_cvref_t<First>, at::Tensor>;

template <class First, class... Rest>
const First& first_of(const First& first, const Rest&...) {
  return first;
}

// Runs the local operator and wraps its results.
template <class Op, class Ret, std::size_t... I, class... Args>
Ret run_local_op(const Hit& hit, std::index_sequence<I...>, Args&... args) {
  const CachedCall& call = hit.call;
  if constexpr (std::is_same_v<Ret, at::Tensor>) {
    return wrap(hit, 0, call_local<Op>(local_argument<I>(call, args)...));
  } else if constexpr (std::is_same_v<Ret, at::Tensor&>) {
    call_local<Op>(local_argument<I>(call, args)...);
    bump_versions(call, hit.operands);
    return first_mutable(args...);
  } else if constexpr (std::is_void_v<Ret>) {
    call_local<Op>(local_argument<I>(call, args)...);
    bump_versions(call, hit.operands);
  } else if constexpr (std::is_same_v<Ret, std::vector<at::Tensor>>) {
    auto locals = call_local<Op>(local_argument<I>(call, args)...);
    for (std::size_t i = 0; i < locals.size(); ++i) locals[i] = wrap(hit, i, std::move(locals[i]));
    return locals;
  } else {
    return wrap_all(hit, call_local<Op>(local_argument<I>(call, args)...),
                    std::make_index_sequence<std::tuple_size_v<Ret>>());
  }
}

// Runs the local operator with gathered parameters in place of operands in storage shards. Falls back to the boxed
// kernel unless all of them are gathered.
template <class Op, class Ret, class... Args, std::size_t... I>
C10_NOINLINE Ret run_gathered(const Hit& hit, std::index_sequence<I...> all, Args... args) {
  const auto& [entry, call, operands, thread, numbers] = hit;
  const auto kept = call.shared_from_this();  // hooks may run operators that evict this call from the cache
  const CallerScope caller(entry.text());
  try {
    enter_call(entry, *call.mesh, thread);
    const GatheredOperands gathered(call, operands);
    if (C10_LIKELY(gathered.complete())) {
      note_numbers(entry, *call.mesh, numbers);
      return run_local_op<Op, Ret>(hit, all, gathered.in_place_of(operand_index<I, Args...>(), args)...);
    }
  } catch (...) {
    rethrow_with_cached_call(entry, call);
  }
  --thread.cache->stats.hits;  // the boxed kernel counts it
  return run_boxed<Ret, Args...>(entry, args...);
}

template <class Op, class Signature>
struct Kernel;

template <class Op, class Ret, class... Args>
struct Kernel<Op, Ret(Args...)> {
  static inline const OpEntry* entry = nullptr;

  static Ret run(Args... args) {
    const KernelGuard guard;
    if constexpr (begins_with_tensor<Args...>) {
      ThreadState& thread = thread_state();
      RecentCall recent(*entry, guard, thread, first_of(args...));
      while (recent.next()) {
        (add_argument(recent, args), ...);
        if (const auto* call = recent.found()) {
          return run_found({*entry, *call, recent.tensors(), thread, recent.key.numbers}, args...);
        }
      }
    }
    return run_by_key(args...);
  }

  C10_NOINLINE static Ret run_by_key(Args... args) {
    CallOperands operands(*entry);
    ((add_argument(operands, args), ++operands.argument), ...);
    const auto* call = operands.has_substituted_operand ? nullptr : find_simple(*entry, operands);
    if (C10_UNLIKELY(call == nullptr)) return run_boxed<Ret, Args...>(*entry, args...);
    return run_found({*entry, *call, operands.tensors, thread_state(), operands.key.numbers}, args...);
  }

  C10_ALWAYS_INLINE static Ret run_found(const Hit& hit, Args... args) {
    if (C10_UNLIKELY(hit.call.gathers)) {
      return run_gathered<Op, Ret, Args...>(hit, std::index_sequence_for<Args...>(), args...);
    }
    try {
      enter_call(hit.entry, *hit.call.mesh, hit.thread);
      note_numbers(hit.entry, *hit.call.mesh, hit.numbers);
      return run_local_op<Op, Ret>(hit, std::index_sequence_for<Args...>(), args...);
    } catch (...) {
      rethrow_with_cached_call(hit.entry, hit.call);
    }
  }
};

// The operator's unboxed kernel in the form that the dispatcher registers.
template <class Op>
c10::KernelFunction kernel_of(const OpEntry& entry) {
  using K = Kernel<Op, typename Op::schema>;
  K::entry = &entry;
  return c10::KernelFunction::makeFromUnboxedRuntimeFunction(&K::run);
}

// The unboxed kernel of an operator, or nullopt if it is not in the list (unboxed_operators.cpp).
std::optional<c10::KernelFunction> find_kernel(const OpEntry& entry);

}  // namespace dtensor::unboxed
