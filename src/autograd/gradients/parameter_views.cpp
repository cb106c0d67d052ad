// A view is located in the gathered parameter by its global strides and offset. They refer to the parameter's
// global memory, and the gathered local tensor has the same dimension order. No operator is replayed.
#include "autograd/gradients/parameter_views.h"

#include <ATen/ops/as_strided.h>

#include <numeric>

#include "autograd/conversion_nodes.h"
#include "autograd/gradients/leaf_gradient.h"
#include "dtensor/hooks.h"
#include "internal/host_work.h"
#include "internal/simulated.h"
#include "placement/stride_order.h"
#include "redistribute/execute.h"

namespace dtensor {
namespace {

const ParameterReference& source_of(const DTensorImpl& impl) { return impl.extras()->source; }

// Undefined if the parameter was freed.
at::Tensor owner_of(const DTensorImpl& impl) { return at::Tensor(source_of(impl).hooks->owner.lock()); }

bool is_cast(const DTensorImpl& impl, const DTensorImpl& parameter) { return impl.dtype() != parameter.dtype(); }

// Whether a result reinterprets its operand's memory: conjugated, negated, or in another dtype (bits, the
// real part). A view of the gathered tensor cannot do this.
bool reads_otherwise(const DTensorImpl& result, const DTensorImpl& operand) {
  if (result.is_conj() != operand.is_conj() || result.is_neg() != operand.is_neg()) return true;
  return is_cast(result, operand) && result.local().defined() && operand.local().defined() &&
         shares_storage(result.local(), operand.local());
}

// Whether the tensor (or the one that it is a device copy of) still has the parameter's values. A cast must be of the
// same generation; a view sees writes to the parameter until its data is replaced.
bool holds(const DTensorImpl& operand, const DTensorImpl& parameter) {
  const auto& tensor = is_device_copy(operand) ? *operand.extras()->stored : operand;
  if (&tensor == &parameter) return true;
  const auto& source = source_of(operand);
  if (!is_cast(operand, parameter)) return source.generation >> 32 == parameter.replacements();
  return source.generation == parameter.generation() && source.own == tensor.generation();
}

// Whether every storage shard of `from` changes: only then is the gathered parameter needed.
bool gathers(const TensorSpec& from, const TensorSpec& to) {
  for (std::size_t i = 0; i < from.placements.size(); ++i) {
    if (from.placements[i].is_storage() && from.placements[i] == to.placements[i]) return false;
  }
  return from.has_storage;
}

// Converts an offset in memory with strides `from` (global) to memory with strides `to` (local):
// the same number of steps along each dimension.
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
  const bool full = spec.sizes == parameter.sizes && spec.strides == parameter.strides &&
                    gathered.sizes() == at::IntArrayRef(local_as.local_sizes) && view.storage_offset() == 0;
  if (full) return gathered;
  at::DimVector strides;
  for (const auto stride : spec.strides) {
    strides.push_back(translate(stride, parameter.sizes, parameter.strides, gathered.strides()));
  }
  const auto offset = translate(view.storage_offset(), parameter.sizes, parameter.strides, gathered.strides());
  return at::as_strided(gathered, local_as.local_sizes, strides, gathered.storage_offset() + offset);
}

}  // namespace

void inherit_source_slow(DTensorImpl& result, const DTensorImpl& operand) {
  if (!result.spec()->has_storage || reads_otherwise(result, operand)) return;
  const auto owner = owner_of(operand);
  if (!owner.defined()) return;
  const auto& parameter = *dtensor_or_null(owner);
  if (!holds(operand, parameter)) return;
  // A cast has its own memory, in which only the full parameter has the same strides and offset.
  const bool full = operand.storage_offset() == 0 && operand.numel() == parameter.numel();
  if (is_cast(result, operand) && (is_cast(operand, parameter) || !full)) return;
  result.make_extras().source = {source_of(operand).hooks, parameter.generation(), result.generation()};
}

at::Tensor find_gathered_by_schedule(const DTensorImpl& operand, const TensorSpec& to) {
  // Gathered parameters of a schedule are on the device. Tensors in host memory that compute on the host are gathered
  // separately.
  const auto& use = source_of(operand).hooks->use;
  const bool stored = is_device_copy(operand);
  if (!stored && operand.spec()->mesh->compute_mesh() != nullptr) return {};
  if (!use || (!stored && !gathers(*operand.spec(), to))) return {};
  const auto owner = owner_of(operand);
  if (!owner.defined()) return {};
  const auto& parameter = *dtensor_or_null(owner);
  if (!holds(operand, parameter)) return {};
  const auto dtype = c10::typeMetaToScalarType(operand.dtype());
  const auto& full = source_of(operand).hooks->specs(parameter).gathered;
  auto gathered = use(DTensor(owner), full->placements, dtype);
  if (!gathered.defined()) return {};
  if (gathered.scalar_type() != dtype) gathered = gathered.to(dtype);
  const auto& own = *operand.spec();
  const auto from = &own == parameter.spec().get() ? full : with_placements(own, gathered_placements(own.placements));
  auto local = view_in(gathered, *parameter.spec(), operand, *from);
  return same_data(*from, to) ? local : to_stride_order(redistribute_local(local, *from, to.placements), to);
}

c10::intrusive_ptr<DTensorImpl> make_device_copy(DTensorImpl& stored) {
  install_gradient_pipeline(stored);
  const auto& spec = *stored.spec();
  const auto mesh = MeshRef::reclaim_copy(const_cast<MeshInfo*>(spec.mesh->compute_mesh()));
  auto on_device = intern_spec(mesh, spec.placements, spec.sizes, spec.strides, spec.dtype);
  auto impl = c10::make_intrusive<DTensorImpl>(std::move(on_device), at::Tensor(), stored.storage_offset());
  if (!impl->is_inference() && !stored.is_inference()) impl->set_version_counter(stored.version_counter());
  auto& extras = impl->make_extras();
  if (stored.extras() != nullptr) extras.source = stored.extras()->source;
  extras.stored = c10::intrusive_ptr<DTensorImpl>::reclaim_copy(&stored);
  return impl;
}

void set_gather_hook(const DTensor& parameter, GatherHook hook) { make_hooks(parameter).use = std::move(hook); }

const GatherHook* gather_hook(const DTensor& parameter) {
  auto* impl = dtensor_or_null(parameter);
  const auto* hooks = impl == nullptr ? nullptr : find_hooks(*impl);
  return hooks != nullptr && hooks->use ? &hooks->use : nullptr;
}

at::Tensor gathered_local(const DTensor& operand, const Placements& wanted) {
  const DTensorImpl* impl = &checked_impl(operand);
  c10::intrusive_ptr<DTensorImpl> copy;
  if (is_offloaded(operand.mesh())) impl = (copy = make_device_copy(*dtensor_or_null(operand))).get();
  if (has_source(*impl)) {
    const at::AutoDispatchBelowADInplaceOrView below;
    if (auto ready = find_gathered_by_schedule(*impl, *with_placements(*impl->spec(), wanted)); ready.defined())
      return ready;
  }
  const at::NoGradGuard no_grad;
  const DTensor stored(operand.detach());
  if (!copy) return stored.redistribute(wanted).to_local();
  return redistribute_local(copy_to_device(stored.to_local(), impl->device()), *impl->spec(), wanted);
}

}  // namespace dtensor
