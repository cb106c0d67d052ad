// Unless the view is a slice, the base's elements are gathered into memory with the global tensor's strides, so the
// view's sizes, strides and offset apply directly.
#include "autograd/materialized_view.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty_strided.h>

#include "autograd/sliced_view.h"
#include "internal/aten_scopes.h"
#include "placement/stride_order.h"
#include "redistribute/execute.h"

namespace dtensor {
namespace {

Placements full(const TensorSpec& spec) { return Placements(spec.placements.size()); }

at::Tensor gathered(const DTensorImpl& tensor) {
  return redistribute_local(tensor.local(), *tensor.spec(), full(*tensor.spec()));
}

at::Tensor scattered(const at::Tensor& values, const TensorSpec& spec) {
  return redistribute_local(values, *with_placements(spec, full(spec)), spec.placements);
}

at::Tensor memory_of(const DTensorImpl& base) {
  const auto values = gathered(base);
  const LocalBelowAutogradGuard regular;
  return at::empty_strided(base.spec()->sizes, base.spec()->strides, values.options()).copy_(values);
}

at::Tensor find_view(const at::Tensor& memory, const DTensorImpl& base, const DTensorImpl& view) {
  return memory.as_strided(view.spec()->sizes, view.spec()->strides, view.storage_offset() - base.storage_offset());
}

// One past the last element in memory; 0 if there are no elements.
std::int64_t extent(const TensorSpec& spec) {
  std::int64_t last = 0;
  for (std::size_t d = 0; d < spec.sizes.size(); ++d) {
    if (spec.sizes[d] == 0) return 0;
    last += (spec.sizes[d] - 1) * spec.strides[d];
  }
  return last + 1;
}

bool is_expanded(const TensorSpec& spec) {
  for (std::size_t d = 0; d < spec.sizes.size(); ++d) {
    if (spec.sizes[d] > 1 && spec.strides[d] == 0) return true;
  }
  return false;
}

void count_write(DTensorImpl& tensor) {
  if (!tensor.is_inference()) tensor.bump_version();
  bump_local_version(tensor);
}

std::optional<SlicedView> as_slice(const DTensorImpl& base, const DTensorImpl& view) {
  return SlicedView::find(*base.spec(), *view.spec(), view.storage_offset() - base.storage_offset());
}

void refresh(DTensorImpl& view) {
  auto& base = *view.base();
  up_to_date_local(base);
  const at::AutoDispatchBelowADInplaceOrView below;
  const auto slice = as_slice(base, view);
  const auto values =
      slice ? slice->read(base.local()) : scattered(find_view(memory_of(base), base, view).contiguous(), *view.spec());
  view.refresh_local(to_stride_order(values.clone(), *view.spec()));
}

}  // namespace

bool is_base_writable(const DTensorImpl& view) {
  if (view.base() == nullptr || view.numel() == 0) return view.base() != nullptr;
  const auto& base = *view.base();
  const bool same_bits = base.dtype() == view.dtype() && base.is_conj() == view.is_conj() &&
                         base.is_neg() == view.is_neg() && !is_expanded(*base.spec());
  const auto begin = view.storage_offset() - base.storage_offset();
  return same_bits && begin >= 0 && begin + extent(*view.spec()) <= extent(*base.spec());
}

const at::Tensor& up_to_date_local(DTensorImpl& tensor) {
  if (C10_LIKELY(!tensor.is_stale())) return tensor.local();
  TORCH_CHECK(is_base_writable(tensor),
              "a view of a DTensor that a redistribution moved was read after its base changed; take the "
              "view again (",
              tensor.spec()->str(), ")");
  if (tensor.spec()->mesh->is_member) refresh(tensor);
  return tensor.local();
}

void write_to_base(DTensorImpl& view) {
  auto& base = *view.base();
  if (view.numel() == 0 || !view.spec()->mesh->is_member) return;
  const at::AutoDispatchBelowADInplaceOrView below;
  up_to_date_local(base);
  if (const auto slice = as_slice(base, view)) {
    slice->write(view.local(), base.local());
  } else {
    const auto values = gathered(view);
    const auto memory = memory_of(base);
    find_view(memory, base, view).copy_(values);
    base.local().copy_(scattered(memory, *base.spec()));
  }
  count_write(base);
  if (base.is_materialized_view()) write_to_base(base);
}

at::Tensor full_value(const at::Tensor& tensor) {
  auto* impl = dtensor_or_null(tensor);
  return impl == nullptr ? tensor : redistribute_local(up_to_date_local(*impl), *impl->spec(), full(*impl->spec()));
}

}  // namespace dtensor
