// The TensorImpl of a DTensor: no storage, global sizes and strides stored plainly, the local tensor and the interned
// spec. Its key set puts the engine's kernels (kDTensorKey) under autograd; see docs/design.md, "dispatcher".
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/TensorImpl.h>

#include <memory>
#include <optional>

#include "placement/spec.h"
#include "scope/thread_state.h"

namespace dtensor {

// Documented by c10 as meant for out-of-tree use; free in LibTorch 2.11 to 2.15.
inline constexpr c10::DispatchKey kDTensorKey = c10::DispatchKey::CustomRNGKeyId;

struct TensorHooks;
struct TensorExtras;

class DTensorImpl final : public c10::TensorImpl {
 public:
  // `local` is undefined on ranks outside the mesh. `offset`: storage offset in the global tensor that this is a view
  // of.
  DTensorImpl(SpecPtr spec, at::Tensor local, std::int64_t offset = 0);
  // The hit path: metadata copied from a prototype with the same spec.
  DTensorImpl(const DTensorImpl& prototype, at::Tensor local, std::int64_t offset);
  ~DTensorImpl() override;
  static void* operator new(std::size_t size) { return thread_state().tensors.allocate(size); }
  static void* operator new(std::size_t size, ThreadState& thread) { return thread.tensors.allocate(size); }
  static void operator delete(void* memory) { thread_state().tensors.deallocate(memory); }
  static void operator delete(void* memory, ThreadState& thread) { thread.tensors.deallocate(memory); }

  const SpecPtr& spec() const { return spec_; }
  const at::Tensor& local() const { return local_; }

  // Re-places in place (redistribute_, in-place view operators, set_data): every handle sees it.
  void reset(SpecPtr spec, at::Tensor local);

  // Lets the data pointer be asked for, which only makes sense to fill the whole of a new tensor: `memory` is laid out
  // as the global tensor, and the local tensor is a part of it (torch::tensor in a MeshScope).
  void set_temporary_storage(c10::Storage memory) {
    storage_ = std::move(memory);
    storage_access_should_throw_ = false;
  }

  // Which data this tensor holds. Every write to it advances the number, through whatever alias: a view, a detached
  // copy, to_local()'s tensor, a collective into that. So does everything that gives the tensor other data or another
  // place: reset, set_data, re-placement. A copy that is derived from the tensor stores the number that it was made at
  // and serves as long as it is the same. The lower half counts writes and is shared by all that share the local
  // memory (it is the local tensor's version counter; inference tensors, which have none, count the writes on their
  // mesh); the upper half counts replacements of this tensor alone.
  std::uint64_t generation() const { return (std::uint64_t{replacements_} << 32) | writes(); }
  std::uint32_t replacements() const { return replacements_; }
  // This tensor is a view of `base`: they count their writes together, and a view of a materialised view is one too.
  void set_view_base(const DTensorImpl& base);

  // What few tensors have; null for most.
  const TensorExtras* extras() const { return extras_.get(); }
  TensorExtras& make_extras();
  // Whether an operator may have to take other data than local(): a moved view's, a reduced form, values that were not
  // rounded, those on the device.
  bool has_alternate_data() const { return C10_UNLIKELY(extras_ != nullptr) && stores_alternate_data(); }

  // A view whose data was moved by a redistribution shares no memory with its base (autograd/materialized_view.h): it
  // is stale once the base has changed. `left`: of a view whose base has other data by now, what it held before it was
  // moved in place.
  void detach_view_from(DTensorImpl& base);
  void keep_former_data(const at::Tensor& left);
  bool is_detached_view() const { return C10_UNLIKELY(extras_ != nullptr) && is_materialised(); }
  bool is_stale() const { return C10_UNLIKELY(extras_ != nullptr) && base_has_changed(); }
  DTensorImpl* base() const;             // null: of no moved view, or of one whose base has other data now
  void refresh_local(at::Tensor local);  // what the base holds now

  // The reduced form of a Partial that an operator had to reduce: its next readers (backward too) take it instead of
  // reducing again.
  void cache_reduced(SpecPtr spec, at::Tensor local);
  // The tensor that an operator which only reads should take: the reduced form, or this.
  DTensorImpl* read_source() { return C10_UNLIKELY(extras_ != nullptr) ? valid_reduced() : this; }

  // The how many-th tensor of its mesh this is (detached copies: that of), the same number on all ranks that make the
  // same tensors in one order: tells equal ones apart where calls are compared. 0: not counted.
  std::uint32_t origin() const { return origin_; }
  void count_origin();

  bool has_reducer = false;  // among its gradient hooks (autograd/gradients/leaf_gradient.h)

  c10::intrusive_ptr<TensorImpl> shallow_copy_and_detach(const c10::VariableVersion& version_counter,
                                                         bool allow_tensor_metadata_change) const override;
  c10::intrusive_ptr<TensorImpl> shallow_copy_and_detach(c10::VariableVersion&& version_counter,
                                                         bool allow_tensor_metadata_change) const override;
  void shallow_copy_from(const c10::intrusive_ptr<TensorImpl>& impl) override;
  // The hooks know this tensor weakly, which would keep them, and the data, alive with its memory.
  void release_resources() override;

 private:
  // What LibTorch says after "Cannot access storage of ".
  const char* tensorimpl_type_name() const override;
  void match_inference_mode(const DTensorImpl& base);
  void take_metadata(std::int64_t offset);
  std::uint32_t writes() const;
  bool is_materialised() const;
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

// A value made of a tensor at one of its generations.
template <class T>
struct DerivedCopy {
  T value = {};
  std::uint64_t generation = 0;
};

// A view that shares no memory with its base.
struct MaterialisedView {
  c10::intrusive_ptr<DTensorImpl> base = {};  // null: it cannot be brought up to date
  c10::VariableVersion left{
      c10::VariableVersion::DISABLED};  // counts the writes to the base's memory, or to what was left
  std::uint64_t generation = 0;         // of the base, or of what was left behind
  std::uint32_t data_changes = 0;       // of the base
};

// The parameter that a tensor is, or is a view or cast of (autograd/gradients/parameter_views.h).
struct ParameterReference {
  std::shared_ptr<TensorHooks> hooks = {};
  std::uint64_t generation = 0;  // of the parameter when this was made of it
  std::uint64_t own = 0;         // of this tensor then
};

struct TensorExtras {
  std::shared_ptr<TensorHooks> hooks = {};  // what a schedule hung on this tensor (dtensor/hooks.h)
  ParameterReference source = {};
  // Of a stand-in, which lasts for one call: the tensor in host memory that the mesh's device computes with. A stand-in
  // has no local tensor.
  c10::intrusive_ptr<DTensorImpl> stored = {};
  std::optional<MaterialisedView> moved = {};
  DerivedCopy<c10::intrusive_ptr<DTensorImpl>> reduced = {};
  std::uint32_t data_changes = 0;  // by set_data: views that moved before keep the former data
};

inline bool DTensorImpl::stores_alternate_data() const {
  return extras_->moved.has_value() || extras_->reduced.value || extras_->stored;
}

inline bool has_dtensor_key(const c10::TensorImpl* impl) { return impl->key_set().has(kDTensorKey); }
inline DTensorImpl* as_dtensor(c10::TensorImpl* impl) { return static_cast<DTensorImpl*>(impl); }
// Null for any other tensor.
inline DTensorImpl* dtensor_or_null(const at::Tensor& tensor) {
  auto* impl = tensor.unsafeGetTensorImpl();
  return has_dtensor_key(impl) ? as_dtensor(impl) : nullptr;
}

inline bool is_device_copy(const DTensorImpl& tensor) {
  return C10_UNLIKELY(tensor.extras() != nullptr) && tensor.extras()->stored;
}

// `local` was made of `of` below autograd and shares its memory: they count their writes together.
void share_version_counter(const at::Tensor& local, const at::Tensor& of);

// Counts its origin.
at::Tensor make_dtensor(SpecPtr spec, at::Tensor local, std::int64_t offset = 0);

// to_local() handed the local tensor out: whoever saved it for backward must notice the write. Moved views too.
void bump_local_version(const DTensorImpl& tensor);

}  // namespace dtensor
