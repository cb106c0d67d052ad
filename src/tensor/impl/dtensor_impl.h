// The TensorImpl of a DTensor. It has no storage; it stores the global sizes and strides, the local tensor and the
// interned spec. Its key set dispatches to the operator kernel (kDTensorKey) below autograd; see docs/design.md.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/TensorImpl.h>

#include <memory>
#include <optional>

#include "placement/spec.h"
#include "scope/thread_state.h"

namespace dtensor {

// c10 documents this key as intended for out-of-tree use. It is free in LibTorch 2.11 to 2.15.
inline constexpr c10::DispatchKey kDTensorKey = c10::DispatchKey::CustomRNGKeyId;

struct TensorHooks;
struct TensorExtras;

class DTensorImpl final : public c10::TensorImpl {
 public:
  // `local` is undefined on ranks outside the mesh. `offset` is the storage offset in the global base tensor.
  DTensorImpl(SpecPtr spec, at::Tensor local, std::int64_t offset = 0);
  // For cache hits: copies the metadata from a prototype with the same spec.
  DTensorImpl(const DTensorImpl& prototype, at::Tensor local, std::int64_t offset);
  ~DTensorImpl() override;
  static void* operator new(std::size_t size) { return thread_state().tensor_memory.allocate(size); }
  static void* operator new(std::size_t size, ThreadState& thread) { return thread.tensor_memory.allocate(size); }
  static void operator delete(void* memory) { thread_state().tensor_memory.deallocate(memory); }
  static void operator delete(void* memory, ThreadState& thread) { thread.tensor_memory.deallocate(memory); }

  const SpecPtr& spec() const { return spec_; }
  const at::Tensor& local() const { return local_; }

  // Replaces spec and data in place (redistribute_, in-place view operators, set_data). Every handle sees the change.
  void reset(SpecPtr spec, at::Tensor local);

  // Makes the data pointer accessible while a new tensor is filled (torch::tensor in a MeshScope). `memory` has the
  // layout of the global tensor, and the local tensor is a view of it.
  void set_temporary_storage(c10::Storage memory) {
    storage_ = std::move(memory);
    storage_access_should_throw_ = false;
  }

  // A number that identifies the data of this tensor. Each write increases it, through any alias: a view, a detached
  // copy, the tensor of to_local(), a collective into that tensor. So does each replacement of the data or placements:
  // reset, set_data, redistribution. A value derived from the tensor stores the number and is valid as long as the
  // number is equal.
  // The lower half counts writes and is shared by all aliases of the local memory: it is the local tensor's version
  // counter. Inference tensors have none, so the mesh counts their writes. The upper half counts replacements of this
  // tensor only.
  std::uint64_t generation() const { return (std::uint64_t{replacements_} << 32) | writes(); }
  std::uint32_t replacements() const { return replacements_; }
  // Makes this tensor a view of `base` with a shared version counter. A view of a materialized view is materialized
  // too.
  void set_view_base(const DTensorImpl& base);

  // Attributes that only few tensors have; null for most.
  const TensorExtras* extras() const { return extras_.get(); }
  TensorExtras& make_extras();
  // Whether an operator may have to use other data than local(): that of a materialized view, a reduced Partial,
  // unrounded values, or data on the device.
  bool has_alternate_data() const { return C10_UNLIKELY(extras_ != nullptr) && stores_alternate_data(); }

  // A materialized view: redistribution copied its data, so it shares no memory with its base
  // (autograd/materialized_view.h). It is stale after the base changes.
  void materialize_view_of(DTensorImpl& base);
  // Makes this tensor, which an in-place view operator redistributed, a materialized view without a base. `previous` is
  // the local tensor that it had: writes to it through other aliases make this tensor stale.
  void keep_former_data(const at::Tensor& previous);
  bool is_materialized_view() const { return C10_UNLIKELY(extras_ != nullptr) && is_materialized(); }
  bool is_stale() const { return C10_UNLIKELY(extras_ != nullptr) && base_has_changed(); }
  // Null if this is not a materialized view, or if the data of its base was replaced.
  DTensorImpl* base() const;
  // Sets the current data of the base.
  void refresh_local(at::Tensor local);

  // Caches the reduced value of a Partial that an operator had to reduce. Later readers, including backward, use it.
  void cache_reduced(SpecPtr spec, at::Tensor local);
  // The tensor that a read-only operator should use: the cached reduced value, or this tensor.
  DTensorImpl* read_source() { return C10_UNLIKELY(extras_ != nullptr) ? valid_reduced() : this; }

  // Creation index of this tensor on its mesh; a detached copy has its source's. Ranks that create the same tensors in
  // one order have the same indices, which Checked uses to distinguish equal tensors. 0: not counted.
  std::uint32_t origin() const { return origin_; }
  void count_origin();

  // Whether its gradient hooks include the pipeline of autograd/gradients/leaf_gradient.h.
  bool has_gradient_pipeline = false;

  c10::intrusive_ptr<TensorImpl> shallow_copy_and_detach(const c10::VariableVersion& version_counter,
                                                         bool allow_tensor_metadata_change) const override;
  c10::intrusive_ptr<TensorImpl> shallow_copy_and_detach(c10::VariableVersion&& version_counter,
                                                         bool allow_tensor_metadata_change) const override;
  void shallow_copy_from(const c10::intrusive_ptr<TensorImpl>& impl) override;
  // Frees the data although weak references in the hooks keep the memory of this object alive.
  void release_resources() override;

 private:
  // LibTorch prints this after "Cannot access storage of ".
  const char* tensorimpl_type_name() const override;
  void match_inference_mode(const DTensorImpl& base);
  void take_metadata(std::int64_t offset);
  std::uint32_t writes() const;
  bool is_materialized() const;
  bool stores_alternate_data() const;
  bool base_has_changed() const;
  bool base_data_was_replaced() const;
  DTensorImpl* valid_reduced();

  SpecPtr spec_;
  at::Tensor local_;
  std::uint32_t replacements_ = 0;
  std::uint32_t origin_ = 0;
  std::unique_ptr<TensorExtras> extras_;
};

// A value derived from a tensor at one of its generations.
template <class T>
struct DerivedCopy {
  T value = {};
  std::uint64_t generation = 0;
};

// The state of a view that shares no memory with its base.
struct MaterializedView {
  c10::intrusive_ptr<DTensorImpl> base = {};  // null: cannot be refreshed
  // Counts the writes to the base's memory, or to the former memory of the base.
  c10::VariableVersion writes{c10::VariableVersion::DISABLED};
  std::uint64_t generation = 0;    // of the base, or of its former memory
  std::uint32_t data_changes = 0;  // set_data calls of the base
};

// The parameter of which a tensor is a view or cast, or which it is (autograd/gradients/parameter_views.h).
struct ParameterReference {
  std::shared_ptr<TensorHooks> hooks = {};
  std::uint64_t generation = 0;  // of the parameter, when this was created
  std::uint64_t own = 0;         // of this tensor, at the same time
};

class Regathered;

// For an activation that is the all-gather of another (internal/saved_activation.h).
struct GatheredActivation {
  at::Tensor source = {};
  std::uint64_t generation = 0;  // of the source, when it was gathered
  std::uint64_t own = 0;         // of this tensor, at the same time
  std::shared_ptr<Regathered> regathered = {};
};

struct TensorExtras {
  std::shared_ptr<TensorHooks> hooks = {};  // hooks of a schedule (dtensor/hooks.h)
  ParameterReference source = {};
  // For a device copy, which exists for one call: the tensor in host memory whose mesh computes on the device. A device
  // copy has no local tensor.
  c10::intrusive_ptr<DTensorImpl> stored = {};
  std::optional<MaterializedView> materialized = {};
  DerivedCopy<c10::intrusive_ptr<DTensorImpl>> reduced = {};
  GatheredActivation gathered = {};
  std::uint32_t data_changes = 0;  // by set_data: views that were materialized before keep the former data
};

inline bool DTensorImpl::stores_alternate_data() const {
  return extras_->materialized.has_value() || extras_->reduced.value || extras_->stored;
}

inline bool has_dtensor_key(const c10::TensorImpl* impl) { return impl->key_set().has(kDTensorKey); }
inline DTensorImpl* as_dtensor(c10::TensorImpl* impl) { return static_cast<DTensorImpl*>(impl); }
// Null for regular tensors.
inline DTensorImpl* dtensor_or_null(const at::Tensor& tensor) {
  auto* impl = tensor.unsafeGetTensorImpl();
  return has_dtensor_key(impl) ? as_dtensor(impl) : nullptr;
}

inline bool is_device_copy(const DTensorImpl& tensor) {
  return C10_UNLIKELY(tensor.extras() != nullptr) && tensor.extras()->stored;
}

// Shares the version counter of `of`, from which `local` was created below autograd and whose memory it shares.
void share_version_counter(const at::Tensor& local, const at::Tensor& of);

// Creates a DTensor and counts its origin.
at::Tensor make_dtensor(SpecPtr spec, at::Tensor local, std::int64_t offset = 0);

// Bumps the version of the local tensor, so that autograd detects writes if it was saved through to_local(). Also for
// materialized views.
void bump_local_version(const DTensorImpl& tensor);

}  // namespace dtensor
