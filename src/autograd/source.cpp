// A view is found again in the gathered parameter by its global strides and offset: those speak of the parameter's
// memory, and the gathered local tensor has its order. No operator is replayed.
#include "autograd/source.h"

#include <ATen/ops/as_strided.h>

#include <numeric>

#include "autograd/leaf_hook.h"
#include "redistribute/execute.h"

namespace dtensor {
namespace {

// Undefined where the parameter is gone.
at::Tensor owner_of(const DTensorImpl& impl) { return at::Tensor(impl.source->owner.lock()); }

std::uint32_t version_of(const c10::TensorImpl& tensor) {
  auto& impl = const_cast<c10::TensorImpl&>(tensor);  // whose readers are not const
  return impl.is_inference() ? 0 : impl.version_counter().current_version();
}

// Counts in-place writes, through whatever view: operators count on the DTensor, the engine on its local tensor too.
std::uint32_t data_version(const DTensorImpl& impl) {
  return version_of(impl) + (impl.local().defined() ? version_of(*impl.local().unsafeGetTensorImpl()) : 0);
}

bool is_cast(const DTensorImpl& impl, const DTensorImpl& owner) { return impl.dtype() != owner.dtype(); }

// Neither the parameter nor its cast has been written to since.
bool cast_holds(const DTensorImpl& impl, const DTensorImpl& owner) {
  return version_of(impl) == 0 && impl.source_version == data_version(owner);
}

Placements without_storage(Placements placements) {
  for (auto& p : placements) {
    if (p.is_storage()) p = Replicate();
  }
  return placements;
}

// Whether every storage shard of `from` is to be something else: only then is the whole parameter wanted.
bool gathers(const TensorSpec& from, const TensorSpec& to) {
  for (std::size_t i = 0; i < from.placements.size(); ++i) {
    if (from.placements[i].is_storage() && from.placements[i] == to.placements[i]) return false;
  }
  return from.has_storage;
}

// Walks `distance` elements of memory laid out by `from` (global) in memory laid out by `to` (this rank's part of it):
// the same step along each dimension.
std::int64_t translate(std::int64_t distance, at::IntArrayRef sizes, at::IntArrayRef from, at::IntArrayRef to) {
  c10::SmallVector<std::size_t, 6> order(from.size(), 0);
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(), [&](auto a, auto b) { return from[a] > from[b]; });
  std::int64_t result = 0;
  for (const auto d : order) {
    if (sizes[d] <= 1 || from[d] == 0) continue;
    result += distance / from[d] * to[d];
    distance %= from[d];
  }
  return result;
}

at::Tensor view_in(const at::Tensor& gathered, const TensorSpec& parameter, const DTensorImpl& view,
                   const TensorSpec& local_as) {
  const auto& spec = *view.spec();
  const bool whole = spec.sizes == parameter.sizes && spec.strides == parameter.strides &&
                     gathered.sizes() == at::IntArrayRef(local_as.local_sizes) && view.storage_offset() == 0;
  if (whole) return gathered;
  at::DimVector strides;
  for (const auto stride : spec.strides) {
    strides.push_back(translate(stride, parameter.sizes, parameter.strides, gathered.strides()));
  }
  const auto offset = translate(view.storage_offset(), parameter.sizes, parameter.strides, gathered.strides());
  return at::as_strided(gathered, local_as.local_sizes, strides, gathered.storage_offset() + offset);
}

}  // namespace

void inherit_source_slow(DTensorImpl& result, const DTensorImpl& operand) {
  if (!result.spec()->has_storage) return;
  const auto owner = owner_of(operand);
  if (!owner.defined()) return;
  const auto& parameter = *dtensor_or_null(owner);
  result.source_version = operand.source_version;
  if (is_cast(result, operand)) {
    // A cast has memory of its own, in which only the whole parameter has the same strides and offset.
    if (is_cast(operand, parameter) || operand.storage_offset() != 0 || operand.numel() != parameter.numel()) return;
    result.source_version = data_version(parameter);
  } else if (is_cast(operand, parameter) && !cast_holds(operand, parameter)) {
    return;
  }
  result.source = operand.source;
}

at::Tensor provided_by_schedule(const DTensorImpl& operand, const TensorSpec& to) {
  // What a schedule has is on the device: tensors in host memory that compute on the host gather for themselves.
  if (!operand.stored && operand.spec()->mesh->computes() != nullptr) return {};
  if (!operand.source->use || (!operand.stored && !gathers(*operand.spec(), to))) return {};
  const auto owner = owner_of(operand);
  if (!owner.defined()) return {};
  const auto& parameter = *dtensor_or_null(owner);
  if (is_cast(operand, parameter) && !cast_holds(operand, parameter)) return {};
  const auto dtype = c10::typeMetaToScalarType(operand.dtype());
  auto gathered = operand.source->use(DTensor(owner), without_storage(parameter.spec()->placements), dtype);
  if (!gathered.defined()) return {};
  if (gathered.scalar_type() != dtype) gathered = gathered.to(dtype);
  const auto from = with_placements(*operand.spec(), without_storage(operand.spec()->placements));
  auto local = view_in(gathered, *parameter.spec(), operand, *from);
  return from->placements == to.placements ? local : redistribute_local(local, *from, to.placements);
}

}  // namespace dtensor
