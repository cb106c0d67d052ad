// From local tensors to DTensors and back, and redistribution, with their gradients.
#pragma once

#include "dtensor/tensor.h"
#include "mesh/mesh_impl.h"
#include "tensor/impl/dtensor_impl.h"

namespace dtensor {

// Placements of a gradient: Partial taken by Replicate, storage flags dropped.
Placements replicate_partials(Placements placements);
// Those of the gradient of a tensor's local part: the same, but where ranks hold shares of an average their gradients
// add up, since from_local gives each of them its part.
Placements local_gradient_placements(Placements placements);
// Placements of a parameter where an operator needs it: storage shards are whole.
Placements gathered_placements(Placements placements);

// The spec of a DTensor that has `local` here. Empty `sizes`: agreed across the mesh (collective), or an error on every
// rank. Empty `strides`: dense and alike on every rank, in the dimension order of the largest local tensor where sizes
// are agreed, else in the local tensor's where every rank's shows one.
SpecPtr infer_spec(const at::Tensor& local, const c10::intrusive_ptr<MeshImpl>& mesh, Placements placements,
                   at::IntArrayRef sizes, at::IntArrayRef strides);

// `tensor` where all ranks of the mesh hold the same; else with the content of the mesh's first rank, as PyTorch does
// (thread ranks that call at::randn share one generator and so draw differently); row-major where it is laid out
// otherwise on some rank. Sizes or dtypes that differ are an error on every rank. Collective.
at::Tensor broadcast_if_different(const at::Tensor& tensor, const MeshImpl& mesh);

// from_local. Gradient: in the forward placements, Partial taking Replicate (Partial(avg): divided by the ranks).
at::Tensor wrap_local(const at::Tensor& local, SpecPtr spec);

// to_local. Gradient: wrapped with grad_placements; by default local_gradient_placements of the forward ones. A default
// Replicate is checked: where the ranks' gradients differ, only the user knows how they combine, and the error says so.
at::Tensor unwrap_local(const at::Tensor& tensor, Placements grad_placements, bool skip_replicate_check = false);

// Throws where the tensor is undefined.
const DTensorImpl& checked_impl(const at::Tensor& tensor);

// Differentiable redistribution, of several tensors in few collectives; `placements` are normalised.
std::vector<at::Tensor> redistribute_tensors(const std::vector<at::Tensor>& tensors,
                                             const std::vector<Placements>& placements);

// The same onto `mesh`, from whatever meshes of its world, in one exchange (autograd/redistribute_between_meshes.cpp).
std::vector<at::Tensor> redistribute_tensors(const std::vector<at::Tensor>& tensors,
                                             const c10::intrusive_ptr<MeshImpl>& mesh,
                                             const std::vector<Placements>& placements);

// A gradient of a tensor of that spec, which may come as a plain tensor, equal on every rank, from a formula that makes
// zeros.
DTensor as_dtensor_like(const at::Tensor& grad, const TensorSpec& spec);

// The local tensor in other placements, below autograd. Never shares memory with the tensor unless placements are
// equal.
at::Tensor redistribute_local_of(DTensorImpl& tensor, const Placements& placements);

// distribute_tensor for a plain tensor. Gradient: gathered to every rank.
at::Tensor distribute_regular_tensor(const at::Tensor& tensor, const c10::intrusive_ptr<MeshImpl>& mesh,
                                     Placements placements);

}  // namespace dtensor
