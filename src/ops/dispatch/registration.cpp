// Registers a kernel for each operator that takes tensors and is not CompositeImplicit, and a fallback for operators
// that other libraries register later. A direct registration precedes composite alias kernels, so operators arrive
// undecomposed.
#include <torch/library.h>

#include <mutex>

#include "comm/launch/rank_exit.h"
#include "dtensor/inspect.h"
#include "ops/dispatch/boxed_kernel.h"
#include "ops/dispatch/registration.h"
#include "ops/dispatch/unboxed_kernel.h"
#include "ops/local_kernels/special/special_kernel.h"
#include "placement/spec.h"
#include "sharding_prop/operators/native_kernel.h"
#include "tensor/impl/dtensor_impl.h"

namespace dtensor {
namespace {

struct OperatorFunctor final : c10::OperatorKernel {
  explicit OperatorFunctor(const OpEntry& op_entry) : entry(op_entry) {}
  void operator()(const c10::OperatorHandle&, c10::DispatchKeySet, torch::jit::Stack* stack) {
    run_operator(entry, *stack);
  }
  const OpEntry& entry;
};

void fallback(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  // InferenceMode removes the autograd key, at which a composite operator would be decomposed.
  if (op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd)) {
    return op.callBoxedForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd, *stack);
  }
  run_operator(entry_of(op), *stack);
}

c10::KernelFunction kernel_of(const OpEntry& entry) {
  if (auto unboxed = unboxed::find_kernel(entry)) return *std::move(unboxed);
  return c10::KernelFunction::makeFromBoxedFunctor(std::make_unique<OperatorFunctor>(entry));
}

void register_kernel(const char* name, const char* overload, c10::DispatchKey key, c10::KernelFunction kernel,
                     Handles& handles) {
  handles.push_back(c10::Dispatcher::singleton().registerImpl({name, overload}, key, std::move(kernel), std::nullopt,
                                                              nullptr, "dtensor"));
}

// Overrides a composite kernel. The autograd key of a DTensor is AutogradMeta.
void register_composite(const char* name, const char* overload, const c10::KernelFunction& kernel, Handles& handles) {
  for (const auto key : {kDTensorKey, c10::DispatchKey::AutogradMeta}) {
    register_kernel(name, overload, key, kernel, handles);
  }
}

// Registers linear as one operator at the DTensor key, so that autograd does not decompose it.
void register_linear(Handles& handles) {
  using c10::KernelFunction;
  register_kernel("aten::linear_backward", "", c10::DispatchKey::CompositeExplicitAutograd,
                  KernelFunction::makeFromUnboxedRuntimeFunction(&linear_backward_kernel), handles);
  register_kernel("aten::linear", "", c10::DispatchKey::AutogradMeta,
                  KernelFunction::makeFromUnboxedRuntimeFunction(&linear_special), handles);
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("aten::linear", "");
  register_kernel("aten::linear", "", kDTensorKey, kernel_of(entry_of(op)), handles);
}

void write_to_out(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  run_functional_and_copy(op, *stack);
}

// Whether `tensor.data = from` may copy the metadata of `from` into the tensor object: never from a DTensor to a
// regular tensor, whose object has no place for a local tensor. ATen compares backends only.
bool can_take_data(const at::Tensor& tensor, const at::Tensor& from) {
  return dtensor_or_null(tensor) != nullptr || dtensor_or_null(from) == nullptr;
}

void register_composites(Handles& handles) {
  using c10::KernelFunction;
  register_composite("aten::_has_compatible_shallow_copy_type", "",
                     KernelFunction::makeFromUnboxedRuntimeFunction(&can_take_data), handles);
  register_composite("aten::tensor_split", "tensor_indices_or_sections",
                     KernelFunction::makeFromUnboxedRuntimeFunction(&tensor_split_special), handles);
  register_composite("aten::scaled_dot_product_attention", "",
                     KernelFunction::makeFromUnboxedRuntimeFunction(&attention_special), handles);
  register_composite("aten::rms_norm", "", KernelFunction::makeFromUnboxedRuntimeFunction(&rms_norm_special), handles);
  register_composite("aten::_convolution_double_backward", "",
                     KernelFunction::makeFromUnboxedRuntimeFunction(&convolution_double_backward_special), handles);
  register_composite("aten::_pad_circular", "", KernelFunction::makeFromUnboxedRuntimeFunction(&pad_circular_special),
                     handles);
  const auto copied = KernelFunction::makeFromBoxedFunction<&write_to_out>();
  register_composite("aten::matmul", "out", copied, handles);
  for (const char* overload : {"out", "out_tol_tensor", "atol_rtol_tensor_out", "atol_rtol_float_out"}) {
    register_composite("aten::linalg_matrix_rank", overload, copied, handles);
  }
}

void register_all() {
  add_rank_exit_hook(&clear_cache);  // a cached call owns its mesh and communicators
  add_rank_exit_hook(&drop_unused_specs);
  auto& dispatcher = c10::Dispatcher::singleton();
  static auto& handles = *new Handles();  // never destroyed
  handles.push_back(dispatcher.registerFallback(kDTensorKey, c10::KernelFunction::makeFromBoxedFunction<&fallback>(),
                                                "dtensor fallback"));
  // Registers its kernel now: a registration while another rank reports a missing kernel fails LibTorch's checks.
  const NativeMetaKernels registered;
  register_sparse_mixing(handles);
  register_composites(handles);
  register_linear(handles);
  for (const auto& name : dispatcher.getAllOpNames()) {
    const auto op = dispatcher.findSchema(name);
    if (!op || !needs_kernel(*op) || op->hasKernelForDispatchKey(kDTensorKey)) continue;
    handles.push_back(
        dispatcher.registerImpl(name, kDTensorKey, kernel_of(entry_of(*op)), std::nullopt, nullptr, "dtensor"));
  }
}

}  // namespace

void ensure_registered() {
  static std::once_flag once;
  std::call_once(once, register_all);
}

}  // namespace dtensor
