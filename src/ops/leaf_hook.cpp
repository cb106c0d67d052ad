// Installs the gradient hook of leaves.
#include "ops/leaf_hook.h"

#include "dtensor/tensor.h"

namespace dtensor {
namespace {

thread_local bool sync_off = false;

Placements gradient_placements(const TensorSpec& leaf) {
  auto placements = leaf.placements;
  for (auto& p : placements) p = p.is_partial() ? Replicate() : p.as_storage(false);
  return placements;
}

}  // namespace

NoGradientSync::NoGradientSync() : previous_(sync_off) { sync_off = true; }
NoGradientSync::~NoGradientSync() { sync_off = previous_; }

void watch_leaf_slow(DTensorImpl& impl) {
  if (!impl.requires_grad()) return;
  impl.leaf_checked = true;
  const at::Tensor tensor(c10::intrusive_ptr<c10::TensorImpl>::reclaim_copy(&impl));
  if (!tensor.is_leaf()) return;
  // The hook lives in the leaf's own autograd metadata, so the leaf outlives it.
  tensor.register_hook([leaf = &impl](at::Tensor grad) -> at::Tensor {
    if (!grad.defined() || sync_off) return grad;
    const auto wanted = gradient_placements(*leaf->spec());
    if (!is_dtensor(grad)) {  // some second-order gradients come as plain tensors, equal on every rank
      return distribute_tensor(
          grad, DTensor(at::Tensor(c10::intrusive_ptr<c10::TensorImpl>::reclaim_copy(leaf))).mesh(), wanted);
    }
    return DTensor(grad).redistribute(wanted);
  });
}

}  // namespace dtensor
