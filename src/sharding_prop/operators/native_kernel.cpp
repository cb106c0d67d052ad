// The dispatcher keeps replaced kernels in private lists. An explicit instantiation may name private members
// ([temp.spec.general]/6), which gives access to them. A LibTorch release that renames these members fails to compile.
// Rejected: removing Python's kernels from the dispatcher temporarily (0.2 s at import, private names of torch's
// Python). Also rejected: passing them the values that they need, since their results still differ from ATen's.
#include "sharding_prop/operators/native_kernel.h"

#include <torch/library.h>

namespace dtensor {
namespace {

// A dispatch key for modes that no library uses; only torch's tests register kernels for it.
constexpr auto kMode = c10::DispatchKey::TESTING_ONLY_GenericMode;

template <class Tag, auto Member>
struct Opened {
  friend constexpr auto opened(Tag) { return Member; }
};

struct Definition {
  friend constexpr auto opened(Definition);
};
struct Kernels {
  friend constexpr auto opened(Kernels);
};
template struct Opened<Definition, &c10::OperatorHandle::operatorDef_>;
template struct Opened<Kernels, &c10::impl::OperatorEntry::kernels_>;

void run_native(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const auto rest = keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kMode);
  if (rest.highestPriorityTypeId() != c10::DispatchKey::Meta) return op.redispatchBoxed(rest, stack);
  if (const auto* native = native_meta_kernel(op)) return native->callBoxed(op, rest, stack);
  TORCH_CHECK_NOT_IMPLEMENTED(native_kernel(op, c10::DispatchKey::CPU) == nullptr, op.operator_name(),
                              ": no fake impl or Meta kernel registered");
  op.redispatchBoxed(rest, stack);
}

c10::DispatchKeySet registered_mode() {
  // Never destroyed. The handle is volatile so that it is stored and leak checkers find it.
  static c10::RegistrationHandleRAII* volatile handle =
      new c10::RegistrationHandleRAII(c10::Dispatcher::singleton().registerFallback(
          kMode, c10::KernelFunction::makeFromBoxedFunction<&run_native>(), "dtensor: native kernels of meta tensors"));
  (void)handle;
  return c10::DispatchKeySet(kMode);
}

// Also removes the key from the excluded set: a Python dispatch mode that runs an operator excludes all keys above
// Python's.
c10::impl::LocalDispatchKeySet keys_with(c10::DispatchKeySet mode) {
  auto keys = c10::impl::tls_local_dispatch_key_set();
  keys.included_ = keys.included_ | mode;
  keys.excluded_ = keys.excluded_ - mode;
  return keys;
}

}  // namespace

NativeMetaKernels::NativeMetaKernels() : mode_(keys_with(registered_mode())) {}

const c10::KernelFunction* native_kernel(const c10::OperatorHandle& op, c10::DispatchKey key) {
  const auto& all = (op.*opened(Definition{}))->op.*opened(Kernels{});
  const auto found = all.find(key);
  if (found == all.end()) return nullptr;
  for (const auto& registered : found->second) {
    const bool unboxed = registered.kernel.isValidUnboxed() || registered.kernel.isValidSymUnboxed();
    if (unboxed) return &registered.kernel;  // kernels of Python are boxed only
  }
  return nullptr;
}

const c10::KernelFunction* native_meta_kernel(const c10::OperatorHandle& op) {
  for (const auto key : {c10::DispatchKey::Meta, c10::DispatchKey::CompositeExplicitAutogradNonFunctional,
                         c10::DispatchKey::CompositeExplicitAutograd, c10::DispatchKey::CompositeImplicitAutograd}) {
    if (const auto* kernel = native_kernel(op, key)) return kernel;
  }
  return nullptr;
}

}  // namespace dtensor
