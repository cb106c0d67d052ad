// The TensorImpl of a DTensor: no storage, global sizes and strides stored plainly, the local tensor and the interned
// spec. Its key set puts the engine's kernels (kDTensorKey) under autograd; see docs/design.md, "dispatcher".
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/TensorImpl.h>

#include "placement/spec.h"

namespace dtensor {

// Documented by c10 as meant for out-of-tree use; free in LibTorch 2.11 to 2.15.
inline constexpr c10::DispatchKey kDTensorKey = c10::DispatchKey::CustomRNGKeyId;

struct TensorHooks;

class DTensorImpl final : public c10::TensorImpl {
 public:
  // `local` is undefined on ranks outside the mesh. `offset`: storage offset in the global tensor that this is a view
  // of.
  DTensorImpl(SpecPtr spec, at::Tensor local, std::int64_t offset = 0);
  // The hit path: metadata copied from a prototype with the same spec.
  DTensorImpl(const DTensorImpl& prototype, at::Tensor local, std::int64_t offset);

  const SpecPtr& spec() const { return spec_; }
  const at::Tensor& local() const { return local_; }

  // Re-places in place (redistribute_, in-place view operators, set_data): every handle sees it.
  void reset(SpecPtr spec, at::Tensor local);

  // Lets the data pointer be asked for, which only makes sense to fill the whole of a new tensor: `memory` is laid out
  // as the global tensor, and the local tensor is a part of it (torch::tensor in a MeshScope).
  void lend_memory(c10::Storage memory) {
    storage_ = std::move(memory);
    storage_access_should_throw_ = false;
  }

  // A view whose data was moved by a redistribution shares no memory with its base (ops/moved_view.h): it is stale once
  // the base (which shares the version counter) has changed. A base that is the tensor itself is not remembered.
  void mark_detached_view(DTensorImpl& base);
  // A view of such a view shares no memory with the base either.
  void inherit_detachment(const DTensorImpl& view) {
    detached_ = view.detached_;
    version_at_detach_ = view.version_at_detach_;
    base_version_ = view.base_version_;
    base_ = view.base_;
  }
  bool is_detached_view() const { return detached_; }
  bool is_stale() const { return C10_UNLIKELY(detached_) && version_of_base() != version_at_detach_; }
  DTensorImpl* base() const { return base_.get(); }
  void take_fresh(at::Tensor local);  // what the base holds now

  // The reduced form of a Partial that an operator had to reduce: its next readers (backward too) take it instead of
  // reducing again. Forgotten once this tensor or its local part is written to.
  void remember_reduced(SpecPtr spec, at::Tensor local);
  // The tensor that an operator which only reads should take: the reduced form, or this.
  DTensorImpl* reader() { return C10_UNLIKELY(reduced_ != nullptr) ? fresh_reduced() : this; }

  // A Partial under a ReducePolicy: its local values before they were rounded to its dtype. Forgotten once this tensor,
  // its local part, or `base`, of which it is a view, is written to.
  void keep_unrounded(at::Tensor values, const DTensorImpl* base = nullptr);
  const at::Tensor* unrounded() const {  // null for most
    return C10_UNLIKELY(unrounded_ != nullptr) && unrounded_->holds(*this) ? &unrounded_->values : nullptr;
  }

  // What a schedule hung on this tensor (dtensor/hooks.h); null for most.
  std::shared_ptr<TensorHooks> hooks;
  // The hooks of the parameter that this tensor is, or is a view or cast of (ops/source.h); null for most.
  std::shared_ptr<TensorHooks> source;
  // Casts only: the parameter's version when it was cast.
  std::uint32_t source_version = 0;

  // Of a stand-in, which lasts for one call: the tensor in host memory that the mesh's device computes with. A stand-in
  // has no local tensor.
  c10::intrusive_ptr<DTensorImpl> stored;

  // Set once the engine has looked at this tensor as a leaf that requires grad (ops/leaf_hook.h).
  bool leaf_checked = false;

  c10::intrusive_ptr<TensorImpl> shallow_copy_and_detach(const c10::VariableVersion& version_counter,
                                                         bool allow_tensor_metadata_change) const override;
  c10::intrusive_ptr<TensorImpl> shallow_copy_and_detach(c10::VariableVersion&& version_counter,
                                                         bool allow_tensor_metadata_change) const override;
  void shallow_copy_from(const c10::intrusive_ptr<TensorImpl>& impl) override;
  // The hooks know this tensor weakly, which would keep them, and the data, alive with its memory.
  void release_resources() override;

 private:
  const char* tensorimpl_type_name() const override { return "DTensor"; }
  void take_metadata(std::int64_t offset);
  std::uint32_t version_of_base() const;
  DTensorImpl* fresh_reduced();

  SpecPtr spec_;
  at::Tensor local_;
  bool detached_ = false;
  std::uint32_t version_at_detach_ = 0;
  c10::VariableVersion base_version_{c10::VariableVersion::DISABLED};
  c10::intrusive_ptr<DTensorImpl> base_;
  c10::intrusive_ptr<DTensorImpl> reduced_;
  std::uint32_t version_at_reduction_ = 0, local_version_at_reduction_ = 0;

  struct Unrounded {
    bool holds(const DTensorImpl& impl) const;
    at::Tensor values;
    c10::VariableVersion counter;  // of the base, which a view shares sooner or later
    std::uint32_t version = 0, local_version = 0;
  };
  std::unique_ptr<Unrounded> unrounded_;
};

inline bool has_dtensor_key(const c10::TensorImpl* impl) { return impl->key_set().has(kDTensorKey); }
inline DTensorImpl* as_dtensor(c10::TensorImpl* impl) { return static_cast<DTensorImpl*>(impl); }
// Null for any other tensor.
inline DTensorImpl* dtensor_or_null(const at::Tensor& tensor) {
  auto* impl = tensor.unsafeGetTensorImpl();
  return has_dtensor_key(impl) ? as_dtensor(impl) : nullptr;
}

at::Tensor make_dtensor(SpecPtr spec, at::Tensor local, std::int64_t offset = 0);

// to_local() handed the local tensor out: whoever saved it for backward must notice the write. Moved views too.
void count_local_write(const DTensorImpl& tensor);

}  // namespace dtensor
