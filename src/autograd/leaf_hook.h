// A leaf's gradient is brought to the leaf's own placements (storage flags dropped) before it is accumulated, so that
// unreduced or whole gradients never pile up.
#pragma once

#include "dtensor/hooks.h"
#include "tensor/impl/dtensor_impl.h"

namespace dtensor {

struct TensorHooks {
  explicit TensorHooks(const c10::intrusive_ptr<c10::TensorImpl>& impl) : owner(impl) {}
  UseHook use;
  GradientHook gradient;
  ReduceHook reduce;
  at::Tensor kept;  // the gradient so far, while autograd accumulates a new one for the reduce hook
  c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl> owner;
};

void watch_leaf_slow(DTensorImpl& impl);

// Called for every operand; a test of two fields once the tensor is known.
inline void watch_leaf(DTensorImpl& impl) {
  if (impl.leaf_checked || impl.autograd_meta() == nullptr) return;
  watch_leaf_slow(impl);
}

// Whether a BackwardStartListener lives on this thread, and the call that serves it.
bool backward_listeners_on();
void notify_backward_start();

}  // namespace dtensor
