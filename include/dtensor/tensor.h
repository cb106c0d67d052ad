// DTensor: an at::Tensor that carries a device mesh and placements. Its sizes, strides and dtype are the global ones;
// any ATen operator may be called on it.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/TensorOptions.h>

#include <functional>
#include <iosfwd>
#include <string>
#include <vector>

#include "dtensor/export.h"
#include "dtensor/mesh.h"
#include "dtensor/placement.h"

namespace dtensor {

// Whether it carries a mesh and placements.
DTENSOR_API bool is_dtensor(const at::Tensor& tensor);

// Adds no data to at::Tensor: a checked view of one.
class DTENSOR_API DTensor : public at::Tensor {
 public:
  DTensor() = default;  // undefined
  // Throws unless is_dtensor(tensor) or tensor is undefined.
  explicit DTensor(at::Tensor tensor);

  // Collective where `sizes` is empty and `local` has dimensions: local sizes are agreed across the ranks of the mesh
  // (they must be the chunks of one global size; an error on every rank otherwise). Else nothing is exchanged: ranks
  // that give other sizes or dtypes have parted, which Checked(Checks::calls) tells at the next collective. Empty
  // `strides`: dense ones, in the order of dimensions of the largest local tensor; where `sizes` are given, in that of
  // the local tensors, which must be one on all ranks, or row-major where some rank's part is too short to show one,
  // and outside the mesh. Differentiable: the gradient of `local` has the forward placements, Partial and Replicate
  // taken literally (see docs/design.md, "border").
  static DTensor from_local(const at::Tensor& local, const DeviceMesh& mesh, Placements placements,
                            at::IntArrayRef sizes = {}, at::IntArrayRef strides = {});

  // Where it lives: the mesh, and a placement for each of its dimensions.
  DeviceMesh mesh() const;
  const Placements& placements() const;

  // This rank's part. Differentiable: `grad_placements` are those of the gradient that arrives at the local tensor; by
  // default the forward ones, except that Partial takes Replicate, and an average (ReduceOp::avg) Partial: its ranks'
  // gradients add up, since from_local has given each of them its part.
  at::Tensor to_local(Placements grad_placements = {}) const;
  // The whole tensor on every rank. Collective. Differentiable.
  at::Tensor full_tensor(Placements grad_placements = {}) const;
  // Same values, other placements. Collective. Differentiable: the gradient comes back in this tensor's placements
  // (Partial takes Replicate).
  DTensor redistribute(Placements placements) const;
  // The same on any other mesh of this world: on the same ranks in another shape, some of them, others. A rank receives
  // the elements that it wants and lacks, each once. Collective over the ranks of both meshes; on ranks outside `mesh`
  // the result has no local tensor. Differentiable.
  DTensor redistribute(const DeviceMesh& mesh, Placements placements) const;
  // In place: every handle to this tensor sees it. Its gradient goes along, to the placements that gradients of such a
  // tensor have (Partial takes Replicate). Not differentiable; refuses views, and non-leaf tensors that require grad.
  DTensor& redistribute_(Placements placements);

  // A number that advances with every write to this tensor, through whatever alias (views, detached copies,
  // to_local()'s tensor, collectives), and whenever it gets other data or placements (set_data, redistribute_). What
  // was derived from the tensor holds as long as the number is the same. Local: no communication.
  std::uint64_t generation() const;

  std::string spec_str() const;  // f32[64, 1024] on [2, 2] [S(0), R]
};

// DTensor::redistribute of several tensors, one entry of `placements` each, in as few collectives as their meshes,
// dtypes and kinds of moves allow; bit for bit what each would give alone. Collective: every rank gives the list in the
// same order. Differentiable (backward moves each gradient by itself).
DTENSOR_API std::vector<DTensor> redistribute(const std::vector<DTensor>& tensors, std::vector<Placements> placements);

// The same onto another mesh, all in one exchange (dtypes and source meshes may differ): weights handed from training
// to generation, activations from one stage of a pipeline to the next. Collective over the ranks of all meshes in play;
// every rank gives the list in the same order, and has a handle to tensors that it holds nothing of (distribute_tensor
// gives it one, or from_local with sizes and an empty tensor of that dtype). Differentiable: gradients go back in one
// exchange too.
DTENSOR_API std::vector<DTensor> redistribute(const std::vector<DTensor>& tensors, const DeviceMesh& mesh,
                                              std::vector<Placements> placements);

// The description and this rank's part. (A plain at::Tensor handle to a DTensor prints as an error: it has no data.)
DTENSOR_API std::ostream& operator<<(std::ostream& out, const DTensor& tensor);

// Splits a plain tensor of which every rank gives the whole; each keeps its part, a copy. Where the ranks' values
// differ, those of the mesh's first rank count, as in PyTorch; sizes or dtypes that differ are an error on every rank.
// Collective (one small exchange; a broadcast where values differ). Differentiable. `tensor` that is a DTensor is
// redistributed, from another mesh too.
DTENSOR_API DTensor distribute_tensor(const at::Tensor& tensor, const DeviceMesh& mesh, Placements placements);
// The same, but only world rank `source` need hold the data (others give any tensor of that shape and dtype).
DTENSOR_API DTensor distribute_tensor_from(const at::Tensor& tensor, const DeviceMesh& mesh, Placements placements,
                                           int source);

// Runs fn on the local tensors (inputs redistributed to in_placements first, where given) and wraps what it returns
// with out_placements. `out_sizes[i]` are global sizes; by default they are agreed as in from_local.
struct LocalMapOptions {
  std::vector<Placements> in_placements;       // one per input, or empty: as they are
  std::vector<Placements> in_grad_placements;  // one per input, or empty: inferred
  // One per result, or empty: agreed.
  std::vector<std::vector<std::int64_t>> out_sizes;
};
// On the local tensors of one rank.
using LocalFunction = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>;
DTENSOR_API std::vector<at::Tensor> local_map(const LocalFunction& fn, const std::vector<at::Tensor>& inputs,
                                              const std::vector<Placements>& out_placements,
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

}  // namespace dtensor
