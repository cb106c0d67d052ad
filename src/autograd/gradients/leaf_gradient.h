// The gradient pipeline of a leaf (its stages: leaf_gradient.cpp), and the hooks of a leaf that it calls (TensorHooks).
// Operators install it on their operands. It redistributes a gradient to the leaf's placements (without storage flags)
// before the gradient is added to .grad, so that no Partial or unsharded gradients accumulate.
#pragma once

#include <torch/csrc/autograd/variable.h>

#include "dtensor/hooks.h"
#include "internal/gather_hook.h"
#include "internal/gradient_hooks.h"
#include "tensor/impl/dtensor_impl.h"

namespace dtensor {

// Specs of a parameter: as stored, gathered, and of its reduced gradient.
struct ParameterSpecs {
  SpecPtr stored, gathered, reduced;
};

struct TensorHooks {
  explicit TensorHooks(const c10::intrusive_ptr<c10::TensorImpl>& impl) : owner(impl) {}
  // Cached, because every use of a parameter needs them.
  const ParameterSpecs& specs(const DTensorImpl& parameter);

  GatherHook use;
  std::function<void(const DTensor& parameter)> gradient;
  ReduceStage reduce;
  std::string reduction;  // the name of reductions without that stage; empty: none
  bool syncs = true;
  c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl> owner;

 private:
  ParameterSpecs specs_;
};

// Null if the tensor has none.
inline const TensorHooks* find_hooks(const DTensorImpl& impl) {
  return impl.extras() == nullptr ? nullptr : impl.extras()->hooks.get();
}
// Creates them if the tensor has none.
TensorHooks& make_hooks(const DTensor& tensor);

void install_gradient_pipeline_slow(DTensorImpl& impl);

// Whether it has a gradient pipeline or needs none. Results of operators need none: `requires_grad_` is set only on
// leaves.
inline bool has_pipeline_or_needs_none(const DTensorImpl& impl) {
  const auto* meta = static_cast<const torch::autograd::AutogradMeta*>(impl.autograd_meta());
  return meta == nullptr || impl.has_gradient_pipeline || !meta->requires_grad_;
}

// Called for every operand: installs the gradient pipeline of a leaf that requires grad. If it has one, this tests
// three fields.
inline void install_gradient_pipeline(DTensorImpl& impl) {
  if (!has_pipeline_or_needs_none(impl)) install_gradient_pipeline_slow(impl);
}

}  // namespace dtensor
