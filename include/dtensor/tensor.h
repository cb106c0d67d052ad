// DTensor: an at::Tensor that carries a device mesh and placements. Its sizes, strides and dtype are the global ones;
// any ATen operator may be called on it.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/TensorOptions.h>

#include <functional>
#include <iosfwd>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "dtensor/export.h"
#include "dtensor/mesh.h"
#include "dtensor/placement.h"

namespace dtensor {

// Full names ("h.0.attn.q_proj.weight") and pointers to the tensors, so that tensors can be replaced. A tied tensor is
// listed under each of its names.
using NamedTensors = std::vector<std::pair<std::string, at::Tensor*>>;

// Whether the tensor carries a device mesh and placements.
DTENSOR_API bool is_dtensor(const at::Tensor& tensor);

// A checked view of an at::Tensor that is a DTensor. It adds no data members.
class DTENSOR_API DTensor : public at::Tensor {
 public:
  DTensor() = default;  // undefined
  // Throws unless is_dtensor(tensor) or tensor is undefined.
  explicit DTensor(at::Tensor tensor);

  // Wraps the local tensors of all ranks. If `sizes` is empty and `local` has dimensions, the call is collective: the
  // ranks exchange their local sizes. Every rank throws if these are not the chunks of one global size. In all other
  // cases nothing is communicated. Ranks that pass different sizes or dtypes then diverge; Checked(Checks::calls)
  // reports it at the next collective. Default `strides` are dense, in the order of dimensions of the largest local
  // tensor. If `sizes` are given, the order is that of the local tensors, which must be the same on all ranks. It is
  // row-major where a local tensor is too small to determine an order, and on ranks outside the mesh. Differentiable:
  // the gradient of `local` has the forward placements; Partial and Replicate are not converted (see docs/design.md).
  static DTensor from_local(const at::Tensor& local, const DeviceMesh& mesh, Placements placements,
                            at::IntArrayRef sizes = {}, at::IntArrayRef strides = {});

  // The mesh, and one placement for each mesh dimension.
  DeviceMesh mesh() const;
  const Placements& placements() const;

  // This rank's local tensor. Differentiable: `grad_placements` are the placements of the gradient of the local tensor.
  // They default to the forward placements, except that Partial(sum) becomes Replicate. Partial(avg) stays Partial,
  // because from_local has given each rank its share of the gradient and these shares add up.
  at::Tensor to_local(Placements grad_placements = {}) const;
  // The replicated value as a regular tensor on every rank. Collective. Differentiable.
  at::Tensor full_tensor(Placements grad_placements = {}) const;
  // The same values with other placements. Collective. Differentiable: the gradient has the placements of this tensor,
  // with Replicate instead of Partial.
  DTensor redistribute(Placements placements) const;
  // The same values on another mesh of this world, on the same ranks in another shape or on other ranks. Each rank
  // receives only the elements that it lacks, each once. Collective over the ranks of both meshes. The result has no
  // local tensor on ranks outside `mesh`. Differentiable.
  DTensor redistribute(const DeviceMesh& mesh, Placements placements) const;
  // Redistributes in place, so every handle to this tensor sees the new placements. The gradient is redistributed to
  // the same placements, with Replicate instead of Partial. Not differentiable. Views and non-leaf tensors that require
  // grad throw.
  DTensor& redistribute_(Placements placements);

  // A number that increases with each write to this tensor through any alias: views, detached copies, the tensor of
  // to_local(), collectives. It also increases if the data or placements change (set_data, redistribute_). A value
  // derived from the tensor is valid as long as the number is the same. No communication.
  std::uint64_t generation() const;

  std::string spec_str() const;  // For example f32[64, 1024] on [2, 2] [S(0), R].
};

// Redistributes several tensors, with one entry of `placements` for each, in as few collectives as their meshes, dtypes
// and kinds of conversions allow. The results are bit-equal to separate calls. Collective: every rank passes the list
// in the same order. Differentiable; backward redistributes each gradient separately.
DTENSOR_API std::vector<DTensor> redistribute(const std::vector<DTensor>& tensors, std::vector<Placements> placements);

// Redistributes several tensors to another mesh in one exchange; dtypes and source meshes may differ. Uses: weights
// from training to generation, activations from one pipeline stage to the next. Collective over the ranks of all meshes
// involved. Every rank passes the list in the same order, including tensors of which it has no local data.
// distribute_tensor returns such handles, and so does from_local for an empty tensor of that dtype with `sizes`.
// Differentiable; gradients return in one exchange.
DTENSOR_API std::vector<DTensor> redistribute(const std::vector<DTensor>& tensors, const DeviceMesh& mesh,
                                              std::vector<Placements> placements);

// Prints the spec and the local tensor. (Printing a DTensor through a handle of type at::Tensor throws.)
DTENSOR_API std::ostream& operator<<(std::ostream& out, const DTensor& tensor);

// Shards a regular tensor that every rank passes in full. Each rank keeps a copy of its part. If values differ between
// ranks, those of the mesh's first rank are used, as in PyTorch. If sizes or dtypes differ, every rank throws.
// Collective: one small exchange, and a broadcast if values differ. Differentiable. If `tensor` is a DTensor, it is
// redistributed, also from another mesh.
DTENSOR_API DTensor distribute_tensor(const at::Tensor& tensor, const DeviceMesh& mesh, Placements placements);
// The same with the data of world rank `source`. Other ranks pass any tensor of that shape and dtype.
DTENSOR_API DTensor distribute_tensor_from(const at::Tensor& tensor, const DeviceMesh& mesh, Placements placements,
                                           int source);

// Runs fn on the local tensors of the inputs, after redistributing them to in_placements if given, and wraps the
// results with out_placements. `out_sizes[i]` are the global sizes of result i; by default the ranks agree on them as
// in from_local.
struct LocalMapOptions {
  std::vector<Placements> in_placements;       // One per input. Empty: no redistribution.
  std::vector<Placements> in_grad_placements;  // One per input. Empty: inferred.
  // One per result. Empty: the ranks agree on them.
  std::vector<std::vector<std::int64_t>> out_sizes;
};
// Maps the local tensors of one rank to local results.
DTENSOR_API std::vector<at::Tensor> local_map(
    const std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>& fn,
    const std::vector<at::Tensor>& inputs, const std::vector<Placements>& out_placements,
    const LocalMapOptions& options = {});

// Factory functions. Each rank fills its own part only. Random ones give the same global tensor on every mesh and with
// every placement (dtensor/random.h).

// `placements` empty: Replicate. The device is the mesh's.
DTENSOR_API DTensor zeros(at::IntArrayRef sizes, const DeviceMesh& mesh, Placements placements = {},
                          at::TensorOptions options = {});
DTENSOR_API DTensor ones(at::IntArrayRef sizes, const DeviceMesh& mesh, Placements placements = {},
                         at::TensorOptions options = {});
DTENSOR_API DTensor empty(at::IntArrayRef sizes, const DeviceMesh& mesh, Placements placements = {},
                          at::TensorOptions options = {});
DTENSOR_API DTensor full(at::IntArrayRef sizes, const at::Scalar& value, const DeviceMesh& mesh,
                         Placements placements = {}, at::TensorOptions options = {});
DTENSOR_API DTensor rand(at::IntArrayRef sizes, const DeviceMesh& mesh, Placements placements = {},
                         at::TensorOptions options = {});
DTENSOR_API DTensor randn(at::IntArrayRef sizes, const DeviceMesh& mesh, Placements placements = {},
                          at::TensorOptions options = {});
// 0, 1, ..., end - 1.
DTENSOR_API DTensor arange(const at::Scalar& end, const DeviceMesh& mesh, Placements placements = {},
                           at::TensorOptions options = {});

// Every tensor that an ATen factory function creates on this thread is a DTensor on `mesh` with `placements` (empty:
// Replicate; a Shard of a dimension that the tensor lacks becomes Replicate). Scopes nest; the innermost applies.
class DTENSOR_API MeshScope {
 public:
  explicit MeshScope(DeviceMesh mesh, Placements placements = {});
  ~MeshScope();
  MeshScope(const MeshScope&) = delete;
  MeshScope& operator=(const MeshScope&) = delete;

 private:
  std::shared_ptr<const void> scope_;
};

}  // namespace dtensor
