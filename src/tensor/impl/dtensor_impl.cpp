// The TensorImpl of a DTensor: key set, metadata, and the copies that autograd makes of it.
#include "tensor/impl/dtensor_impl.h"

#include <ATen/core/Tensor.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace dtensor {
namespace {

// MetaBit makes ATen take its subclass-safe paths (isTensorSubclassLike) without owning a Python key.
c10::DispatchKeySet compute_key_set(c10::DeviceType device) {
  const auto key = c10::computeDispatchKey(std::nullopt, std::nullopt, c10::Device(device));
  const auto backend = c10::toBackendComponent(key);
  return c10::DispatchKeySet(kDTensorKey) | c10::DispatchKeySet(backend) |
         c10::DispatchKeySet(c10::BackendComponent::MetaBit) | c10::getAutocastRelatedKeySetFromBackend(backend);
}

// Every result asks.
c10::DispatchKeySet key_set_for(c10::DeviceType device) {
  static const auto cpu = compute_key_set(c10::kCPU), cuda = compute_key_set(c10::kCUDA);
  return device == c10::kCPU ? cpu : device == c10::kCUDA ? cuda : compute_key_set(device);
}

// With its index: a prototype has no local tensor, and autograd compares whole devices.
c10::Device current_device(c10::DeviceType type) {
  if (type == c10::kCPU || !c10::impl::hasDeviceGuardImpl(type)) return c10::Device(type);
  return c10::impl::VirtualGuardImpl(type).getDevice();
}

c10::Device device_of(const TensorSpec& spec, const at::Tensor& local) {
  const bool stored = spec.mesh->computes() != nullptr;
  return local.defined() && !stored ? local.device() : current_device(spec.mesh->seen_device());
}

}  // namespace

DTensorImpl::DTensorImpl(SpecPtr spec, at::Tensor local, std::int64_t offset)
    : TensorImpl(key_set_for(spec->mesh->seen_device()), c10::scalarTypeToTypeMeta(spec->dtype),
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

void DTensorImpl::reset(SpecPtr spec, at::Tensor local) {
  spec_ = std::move(spec);
  local_ = std::move(local);
  detached_ = false;
  base_.reset();
  if (source != hooks) source = nullptr;
  reduced_.reset();
  unrounded_.reset();
  take_metadata(storage_offset_);
}

void DTensorImpl::keep_unrounded(at::Tensor values, const DTensorImpl* base) {
  auto& owner = base == nullptr ? *this : const_cast<DTensorImpl&>(*base);  // whose reader is not const
  if (owner.is_inference() || local_.is_inference()) return;                // no version to compare
  const auto& counter = owner.version_counter();
  unrounded_ = std::make_unique<Unrounded>(
      Unrounded{std::move(values), counter, counter.current_version(), static_cast<std::uint32_t>(local_._version())});
}

bool DTensorImpl::Unrounded::holds(const DTensorImpl& reader) const {
  auto& impl = const_cast<DTensorImpl&>(reader);  // whose readers are not const
  const auto own = impl.is_inference() ? 0 : impl.version_counter().current_version();
  return counter.current_version() == version && (own == 0 || own == version) &&
         static_cast<std::uint32_t>(impl.local_._version()) == local_version;
}

void DTensorImpl::remember_reduced(SpecPtr spec, at::Tensor local) {
  if (is_inference() || local_.is_inference()) return;  // no version to compare
  reduced_ = c10::make_intrusive<DTensorImpl>(std::move(spec), std::move(local), storage_offset_);
  version_at_reduction_ = version_counter().current_version();
  local_version_at_reduction_ = static_cast<std::uint32_t>(local_._version());
}

DTensorImpl* DTensorImpl::fresh_reduced() {
  const bool fresh = version_counter().current_version() == version_at_reduction_ &&
                     static_cast<std::uint32_t>(local_._version()) == local_version_at_reduction_;
  if (fresh) return reduced_.get();
  reduced_.reset();
  return this;
}

void DTensorImpl::mark_detached_view(DTensorImpl& base) {
  detached_ = true;
  if (&base != this) base_ = c10::intrusive_ptr<DTensorImpl>::reclaim_copy(&base);
  if (!is_inference() && !base.is_inference()) base_version_ = base.version_counter();
  version_at_detach_ = version_of_base();
}

// Inference tensors have no version: any write on the mesh may have been to the base.
std::uint32_t DTensorImpl::version_of_base() const {
  return base_version_.enabled() ? base_version_.current_version() : spec_->mesh->writes();
}

void DTensorImpl::take_fresh(at::Tensor local) {
  local_ = std::move(local);
  version_at_detach_ = version_of_base();
  reduced_.reset();
  unrounded_.reset();
}

c10::intrusive_ptr<c10::TensorImpl> DTensorImpl::shallow_copy_and_detach(const c10::VariableVersion& version_counter,
                                                                         bool allow_tensor_metadata_change) const {
  auto copy = c10::make_intrusive<DTensorImpl>(*this, local_, storage_offset_);
  if (!copy->is_inference()) copy->set_version_counter(version_counter);
  copy->set_allow_tensor_metadata_change(allow_tensor_metadata_change);
  copy->detached_ = detached_;
  copy->version_at_detach_ = version_at_detach_;
  copy->base_version_ = base_version_;
  copy->base_ = base_;
  copy->source = source;
  copy->source_version = source_version;
  if (unrounded_) copy->unrounded_ = std::make_unique<Unrounded>(*unrounded_);
  return copy;
}

c10::intrusive_ptr<c10::TensorImpl> DTensorImpl::shallow_copy_and_detach(c10::VariableVersion&& version_counter,
                                                                         bool allow_tensor_metadata_change) const {
  return shallow_copy_and_detach(static_cast<const c10::VariableVersion&>(version_counter),
                                 allow_tensor_metadata_change);
}

void DTensorImpl::shallow_copy_from(const c10::intrusive_ptr<TensorImpl>& impl) {
  TORCH_CHECK(has_dtensor_key(impl.get()),
              "a DTensor cannot take the data of a plain tensor; distribute it first: distribute_tensor(t, mesh, ",
              to_string(spec_->placements), ")");
  auto* other = as_dtensor(impl.get());
  storage_offset_ = other->storage_offset_;
  reset(other->spec_, other->local_);
}

void DTensorImpl::release_resources() {
  local_.reset();
  base_.reset();
  reduced_.reset();
  unrounded_.reset();
  source.reset();
  hooks.reset();
  TensorImpl::release_resources();
}

at::Tensor make_dtensor(SpecPtr spec, at::Tensor local, std::int64_t offset) {
  return at::Tensor(c10::make_intrusive<DTensorImpl>(std::move(spec), std::move(local), offset));
}

void count_local_write(const DTensorImpl& tensor) {
  const auto& local = tensor.local();
  if (!local.defined()) return;
  local.is_inference() ? tensor.spec()->mesh->count_write() : local.unsafeGetTensorImpl()->bump_version();
}

}  // namespace dtensor
