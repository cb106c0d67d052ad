// Conversion between local tensors and DTensors, and redistribution, with gradients.
#pragma once

#include "dtensor/tensor.h"
#include "mesh/mesh_impl.h"
#include "tensor/impl/dtensor_impl.h"

namespace dtensor {

// Placements of a gradient: Partial becomes Replicate, storage flags are dropped.
Placements replicate_partials(Placements placements);
// Placements of the gradient of a tensor's local tensor: the same, but Partial(avg) becomes Partial(sum), because
// from_local divides the gradients of the ranks.
Placements local_gradient_placements(Placements placements);
// Placements of a parameter that an operator uses: storage shards become Replicate.
Placements gathered_placements(Placements placements);

// The spec of a DTensor with `local` on this rank. Empty `sizes`: the ranks of the mesh agree on them (collective), or
// all throw. Empty `strides`: dense and equal on every rank. They follow the dimension order of the largest local
// tensor if sizes are agreed, otherwise that of the local tensor if it is unambiguous on every rank.
SpecPtr infer_spec(const at::Tensor& local, const c10::intrusive_ptr<MeshImpl>& mesh, Placements placements,
                   at::IntArrayRef sizes, at::IntArrayRef strides);

// Returns `tensor` if it is equal on all ranks of the mesh; otherwise the values of the mesh's first rank, as PyTorch
// does (thread ranks that call at::randn share one generator, so their values differ). Row-major if memory layouts
// differ. Sizes or dtypes that differ are an error on every rank. Collective.
at::Tensor broadcast_if_different(const at::Tensor& tensor, const MeshImpl& mesh);

// from_local. The gradient has the forward placements with Partial replaced by Replicate (for Partial(avg), divided by
// the ranks).
at::Tensor wrap_local(const at::Tensor& local, SpecPtr spec);

// to_local. The gradient is wrapped with grad_placements; default: local_gradient_placements of the forward placements.
// A default Replicate is checked: if the ranks' gradients differ, throws and asks for explicit grad_placements.
at::Tensor unwrap_local(const at::Tensor& tensor, Placements grad_placements, bool skip_replicate_check = false);

// Throws if the tensor is undefined.
const DTensorImpl& checked_impl(const at::Tensor& tensor);

// Differentiable redistribution of several tensors in few collectives; `placements` are normalized.
std::vector<at::Tensor> redistribute_tensors(const std::vector<at::Tensor>& tensors,
                                             const std::vector<Placements>& placements);

// Moves a gradient to its leaf's placements. Its own gradient keeps its shards where `gradient` is Replicate, since no
// operator needs them in full.
DTensor redistribute_gradient(const DTensor& gradient, const Placements& placements);

// Redistribution to `mesh`, from any meshes of its world, in one exchange (autograd/redistribute_between_meshes.cpp).
std::vector<at::Tensor> redistribute_tensors(const std::vector<at::Tensor>& tensors,
                                             const c10::intrusive_ptr<MeshImpl>& mesh,
                                             const std::vector<Placements>& placements);

// A gradient of a tensor of that spec as a DTensor. Derivative formulas that create zeros give a regular tensor, equal
// on every rank.
DTensor as_dtensor_like(const at::Tensor& grad, const TensorSpec& spec);

// The local tensor in other placements, below autograd. Shares no memory with the tensor unless the placements are
// equal.
at::Tensor redistribute_local_of(DTensorImpl& tensor, const Placements& placements);

// distribute_tensor of a regular tensor. Its gradient is gathered on every rank.
at::Tensor distribute_regular_tensor(const at::Tensor& tensor, const c10::intrusive_ptr<MeshImpl>& mesh,
                                     Placements placements);

}  // namespace dtensor
