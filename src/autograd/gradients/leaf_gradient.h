// A leaf's gradient is brought to the leaf's own placements (storage flags dropped) before it is accumulated, so that
// unreduced or whole gradients never pile up.
#pragma once

#include <torch/csrc/autograd/variable.h>

#include "dtensor/hooks.h"
#include "internal/gradient_hooks.h"
#include "tensor/impl/dtensor_impl.h"

namespace dtensor {

// What a parameter's placements become: those of the gathered one, and of its reduced gradient.
struct ParameterSpecs {
  SpecPtr stored, gathered, reduced;
};

struct TensorHooks {
  explicit TensorHooks(const c10::intrusive_ptr<c10::TensorImpl>& impl) : owner(impl) {}
  // Kept, since every use of a parameter asks.
  const ParameterSpecs& specs(const DTensorImpl& parameter);

  GatherHook use;
  GradientReadyHook gradient;
  ReduceHook reduce;
  bool syncs = true;
  c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl> owner;

 private:
  ParameterSpecs specs_;
};

void install_leaf_reducer_slow(DTensorImpl& impl);

// Whether it needs no reducer, or has one. Results of operators need none: `requires_grad_` is of leaves alone.
inline bool has_reducer_or_needs_none(const DTensorImpl& impl) {
  const auto* meta = static_cast<const torch::autograd::AutogradMeta*>(impl.autograd_meta());
  return meta == nullptr || impl.has_reducer || !meta->requires_grad_;
}

// Called for every operand: gives a leaf that requires grad its reducer. A test of three fields once it has one.
inline void install_leaf_reducer(DTensorImpl& impl) {
  if (!has_reducer_or_needs_none(impl)) install_leaf_reducer_slow(impl);
}

}  // namespace dtensor
