// A leaf's gradient is brought to the leaf's own placements (storage flags dropped) before it is accumulated, so that
// unreduced or whole gradients never pile up.
#pragma once

#include "tensor/impl/dtensor_impl.h"

namespace dtensor {

void watch_leaf_slow(DTensorImpl& impl);

// Called for every operand; a test of two fields once the tensor is known.
inline void watch_leaf(DTensorImpl& impl) {
  if (impl.leaf_checked || impl.autograd_meta() == nullptr) return;
  watch_leaf_slow(impl);
}

// For this thread, while it lives: gradients are accumulated as they come (gradient accumulation without
// synchronisation); the placements of the first one stay.
class NoGradientSync {
 public:
  NoGradientSync();
  ~NoGradientSync();

 private:
  bool previous_;
};

}  // namespace dtensor
