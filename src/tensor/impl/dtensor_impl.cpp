// The TensorImpl of a DTensor: its key set, its metadata, and the detached copies that autograd makes.
#include "tensor/impl/dtensor_impl.h"

#include <ATen/core/Tensor.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "comm/record/call_history.h"
#include "mesh/mesh_impl.h"
#include "tensor/impl/call_error.h"
#include "tensor/impl/call_order.h"

namespace dtensor {
namespace {

// MetaBit makes ATen take its subclass-safe paths (isTensorSubclassLike) without owning a Python key.
c10::DispatchKeySet compute_key_set(c10::DeviceType device) {
  const auto key = c10::computeDispatchKey(std::nullopt, std::nullopt, c10::Device(device));
  const auto backend = c10::toBackendComponent(key);
  return c10::DispatchKeySet(kDTensorKey) | c10::DispatchKeySet(backend) |
         c10::DispatchKeySet(c10::BackendComponent::MetaBit) | c10::getAutocastRelatedKeySetFromBackend(backend);
}

// Cached, because every result needs it.
c10::DispatchKeySet key_set_for(c10::DeviceType device) {
  static const auto cpu = compute_key_set(c10::kCPU), cuda = compute_key_set(c10::kCUDA);
  return device == c10::kCPU ? cpu : device == c10::kCUDA ? cuda : compute_key_set(device);
}

// Includes the device index, because autograd compares it. A prototype has no local tensor to take it from.
c10::Device current_device(c10::DeviceType type) {
  if (type == c10::kCPU || !c10::impl::hasDeviceGuardImpl(type)) return c10::Device(type);
  return c10::impl::VirtualGuardImpl(type).getDevice();
}

c10::Device device_of(const TensorSpec& spec, const at::Tensor& local) {
  const bool stored = spec.mesh->compute_mesh() != nullptr;
  return local.defined() && !stored ? local.device() : current_device(spec.mesh->reported_device());
}

}  // namespace

DTensorImpl::DTensorImpl(SpecPtr spec, at::Tensor local, std::int64_t offset)
    : TensorImpl(key_set_for(spec->mesh->reported_device()), c10::scalarTypeToTypeMeta(spec->dtype),
                 device_of(*spec, local)),
      spec_(std::move(spec)),
      local_(std::move(local)) {
  set_storage_access_should_throw();
  take_metadata(offset);
}

DTensorImpl::DTensorImpl(const DTensorImpl& prototype, at::Tensor local, std::int64_t offset)
    : TensorImpl(prototype.key_set_, prototype.data_type_, prototype.device_opt_),
      spec_(prototype.spec_),
      local_(std::move(local)) {
  sizes_and_strides_ = prototype.sizes_and_strides_;
  numel_ = prototype.numel_;
  storage_offset_ = offset;
  is_contiguous_ = prototype.is_contiguous_;
  is_channels_last_ = prototype.is_channels_last_;
  is_channels_last_contiguous_ = prototype.is_channels_last_contiguous_;
  is_channels_last_3d_ = prototype.is_channels_last_3d_;
  is_channels_last_3d_contiguous_ = prototype.is_channels_last_3d_contiguous_;
  is_non_overlapping_and_dense_ = prototype.is_non_overlapping_and_dense_;
  storage_access_should_throw_ = true;
  if (local_.defined()) {
    if (C10_UNLIKELY(local_.is_meta())) device_opt_ = local_.device();
    const auto keys = local_.unsafeGetTensorImpl()->key_set();
    if (keys.has_any(c10::DispatchKeySet({c10::DispatchKey::Conjugate, c10::DispatchKey::Negative}))) {
      _set_conj(keys.has(c10::DispatchKey::Conjugate));
      _set_neg(keys.has(c10::DispatchKey::Negative));
    }
  }
}

void DTensorImpl::take_metadata(std::int64_t offset) {
  set_sizes_and_strides(spec_->sizes, spec_->strides);
  storage_offset_ = offset;
  data_type_ = c10::scalarTypeToTypeMeta(spec_->dtype);
  if (local_.defined() && (local_.is_conj() || is_conj())) _set_conj(local_.is_conj());
  if (local_.defined() && (local_.is_neg() || is_neg())) _set_neg(local_.is_neg());
}

// Destroys the autograd metadata first: the hooks of a leaf access this tensor as a DTensorImpl.
DTensorImpl::~DTensorImpl() { set_autograd_meta(nullptr); }

TensorExtras& DTensorImpl::make_extras() {
  if (extras_ == nullptr) extras_ = std::make_unique<TensorExtras>();
  return *extras_;
}

void DTensorImpl::count_origin() {
  if (is_call_order_deterministic()) origin_ = as_mesh_impl(*spec_->mesh).history().count_tensor();
}

void DTensorImpl::reset(SpecPtr spec, at::Tensor local) {
  spec_ = std::move(spec);
  local_ = std::move(local);
  ++replacements_;
  if (extras_ != nullptr) {
    extras_->materialized.reset();
    if (extras_->source.hooks != extras_->hooks) extras_->source = {};
  }
  take_metadata(storage_offset_);
}

namespace {

std::uint32_t writes_to(const c10::VariableVersion& counter, const MeshInfo& mesh) {
  return counter.enabled() ? counter.current_version() : mesh.inference_version();
}

}  // namespace

std::uint32_t DTensorImpl::writes() const {
  if (!local_.defined()) return 0;
  return writes_to(local_.unsafeGetTensorImpl()->version_counter(), *spec_->mesh);
}

// In inference mode, a view of a normal tensor is a normal tensor too, and autograd shares the base's version counter.
void DTensorImpl::match_inference_mode(const DTensorImpl& base) {
  const auto keys = base.key_set() & c10::autograd_dispatch_keyset_with_ADInplaceOrView;
  if (keys.empty() || !is_inference()) return;
  key_set_ = key_set_ | keys;
  set_version_counter(c10::VariableVersion(/*version=*/0));
}

void DTensorImpl::set_view_base(const DTensorImpl& base) {
  match_inference_mode(base);
  if (C10_UNLIKELY(base.is_materialized_view())) make_extras().materialized = base.extras_->materialized;
  share_version_counter(local_, base.local_);
}

void DTensorImpl::cache_reduced(SpecPtr spec, at::Tensor local) {
  if (local_.is_inference()) return;  // writes to the local tensor would not be counted
  make_extras().reduced = {c10::make_intrusive<DTensorImpl>(std::move(spec), std::move(local), storage_offset_),
                           generation()};
}

DTensorImpl* DTensorImpl::valid_reduced() {
  auto& kept = extras_->reduced;
  if (kept.value && kept.generation == generation() && !base_has_changed()) return kept.value.get();
  kept.value.reset();
  return this;
}

bool DTensorImpl::is_materialized() const { return extras_->materialized.has_value(); }
DTensorImpl* DTensorImpl::base() const {
  return is_materialized_view() && !base_data_was_replaced() ? extras_->materialized->base.get() : nullptr;
}

void DTensorImpl::materialize_view_of(DTensorImpl& base) {
  match_inference_mode(base);
  auto& view = make_extras().materialized.emplace();
  view.base = c10::intrusive_ptr<DTensorImpl>::reclaim_copy(&base);
  view.writes = base.local_.unsafeGetTensorImpl()->version_counter();
  view.generation = base.generation();
  view.data_changes = base.make_extras().data_changes;
}

void DTensorImpl::keep_former_data(const at::Tensor& previous) {
  auto& view = make_extras().materialized.emplace();
  view.writes = previous.unsafeGetTensorImpl()->version_counter();
  view.generation = writes_to(view.writes, *spec_->mesh);
}

bool DTensorImpl::base_data_was_replaced() const {
  const auto& view = *extras_->materialized;
  return view.base && view.base->extras_->data_changes != view.data_changes;
}

namespace {

// Whether the base was neither written nor redistributed between the creation of the view and set_data.
bool was_fresh_then(const MaterializedView& view, const DTensorImpl& base) {
  const auto replaced = base.replacements() - static_cast<std::uint32_t>(view.generation >> 32);
  return replaced == base.extras()->data_changes - view.data_changes &&
         writes_to(view.writes, *base.spec()->mesh) == static_cast<std::uint32_t>(view.generation);
}

}  // namespace

bool DTensorImpl::base_has_changed() const {
  if (!extras_->materialized) return false;
  const auto& view = *extras_->materialized;
  if (base_data_was_replaced()) return !was_fresh_then(view, *view.base);
  if (view.base && view.base->is_stale()) return true;  // the base is a materialized view itself
  return view.generation != (view.base ? view.base->generation() : writes_to(view.writes, *spec_->mesh));
}

void DTensorImpl::refresh_local(at::Tensor local) {
  local_ = std::move(local);
  ++replacements_;
  auto& view = *extras_->materialized;
  view.writes = view.base->local_.unsafeGetTensorImpl()->version_counter();
  view.generation = view.base->generation();
}

c10::intrusive_ptr<c10::TensorImpl> DTensorImpl::shallow_copy_and_detach(const c10::VariableVersion& version_counter,
                                                                         bool allow_tensor_metadata_change) const {
  auto copy = c10::make_intrusive<DTensorImpl>(*this, local_, storage_offset_);
  if (!copy->is_inference()) copy->set_version_counter(version_counter);
  copy->set_allow_tensor_metadata_change(allow_tensor_metadata_change);
  copy->replacements_ = replacements_;
  copy->origin_ = origin_;
  if (C10_LIKELY(extras_ == nullptr)) return copy;
  auto& extras = copy->make_extras();
  extras.materialized = extras_->materialized;
  extras.source = extras_->source;
  if (extras_->hooks) extras.source.generation = extras.source.own = generation();
  return copy;
}

c10::intrusive_ptr<c10::TensorImpl> DTensorImpl::shallow_copy_and_detach(c10::VariableVersion&& version_counter,
                                                                         bool allow_tensor_metadata_change) const {
  return shallow_copy_and_detach(static_cast<const c10::VariableVersion&>(version_counter),
                                 allow_tensor_metadata_change);
}

void DTensorImpl::shallow_copy_from(const c10::intrusive_ptr<TensorImpl>& impl) {
  TORCH_CHECK(has_dtensor_key(impl.get()),
              "a DTensor cannot take the data of a regular tensor; distribute it first: distribute_tensor(t, mesh, ",
              to_string(spec_->placements), ")");
  auto* other = as_dtensor(impl.get());
  storage_offset_ = other->storage_offset_;
  device_opt_ = other->device_opt_;  // a meta tensor may get memory
  reset(other->spec_, other->local_);
  if (extras_ != nullptr) ++extras_->data_changes;
  if (other->is_materialized_view()) make_extras().materialized = other->extras_->materialized;
}

const char* DTensorImpl::tensorimpl_type_name() const {
  return "DTensor, which has no memory of its own: use full_tensor(), or to_local() for the local tensor; "
         "to save it from all ranks, use dtensor.save (save_state in C++)";
}

void DTensorImpl::release_resources() {
  local_.reset();
  extras_.reset();
  TensorImpl::release_resources();
}

void share_version_counter(const at::Tensor& local, const at::Tensor& of) {
  if (!local.defined() || !of.defined() || local.is_same(of) || local.is_inference() || of.is_inference()) return;
  local.unsafeGetTensorImpl()->set_version_counter(of.unsafeGetTensorImpl()->version_counter());
}

at::Tensor make_dtensor(SpecPtr spec, at::Tensor local, std::int64_t offset) {
  auto impl = c10::make_intrusive<DTensorImpl>(std::move(spec), std::move(local), offset);
  impl->count_origin();
  set_storage_error_message(*impl);
  return at::Tensor(std::move(impl));
}

void bump_local_version(const DTensorImpl& tensor) {
  const auto& local = tensor.local();
  if (!local.defined()) return;
  local.is_inference() ? tensor.spec()->mesh->bump_inference_version() : local.unsafeGetTensorImpl()->bump_version();
}

}  // namespace dtensor
