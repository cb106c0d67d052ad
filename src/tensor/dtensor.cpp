// Conversions between regular tensors and DTensors.
#include "dtensor/tensor.h"

#include <ATen/core/Formatting.h>

#include <ostream>

#include "autograd/conversion_nodes.h"
#include "internal/materialized_views.h"
#include "internal/simulated.h"
#include "internal/wrapper_subclass.h"
#include "mesh/mesh_impl.h"
#include "ops/dispatch/registration.h"
#include "placement/shard_map.h"
#include "tensor/impl/call_error.h"
#include "tensor/impl/dtensor_impl.h"

namespace dtensor {

bool is_materialized_view(const at::Tensor& tensor) {
  return is_dtensor(tensor) && checked_impl(tensor).is_materialized_view();
}

namespace {

// Kernels and collectives access memory. Wrapper subclasses of Python and sparse tensors have no memory of their own.
void check_has_memory(const at::Tensor& tensor, const char* caller) {
  if (tensor.is_meta() || is_dtensor(tensor) || tensor._is_zerotensor() || is_simulated(tensor)) return;
  const auto* impl = tensor.unsafeGetTensorImpl();
  const bool has_memory = impl->has_storage() && (tensor.numel() == 0 || impl->unsafe_storage().data() != nullptr);
  TORCH_CHECK_TYPE(has_memory, caller, ": expected a tensor with memory of its own, got a ", tensor.layout(),
                   " tensor of sizes ", tensor.sizes(), " without; place the tensors that a wrapper subclass ",
                   "(__tensor_flatten__) or a sparse tensor holds");
}

}  // namespace

DTensor DTensor::from_local(const at::Tensor& local, const DeviceMesh& mesh, Placements placements,
                            at::IntArrayRef sizes, at::IntArrayRef strides) {
  ensure_registered();
  TORCH_CHECK(mesh, "from_local: expected a mesh, got an empty DeviceMesh");
  TORCH_CHECK(local.defined(),
              "from_local: expected a defined tensor, got an undefined one; on a rank without elements, pass an empty "
              "tensor; outside the mesh, its dtype is used");
  TORCH_CHECK(!is_dtensor(local), "from_local: the local_tensor argument only accepts torch.Tensor but got a DTensor: ",
              DTensor(local).spec_str());
  if (!is_wrapper_subclass(local)) check_has_memory(local, "from_local");
  TORCH_CHECK(!is_wrapper_subclass(local) || !local.requires_grad(), "from_local: expected a wrapper subclass that ",
              "requires no grad, got one that does; pass local.detach() and set requires_grad of the result");
  TORCH_CHECK(local.is_meta() || local.device().type() == mesh.device_type(), "from_local: expected a local tensor on ",
              mesh.device_type(), " for ", mesh.str(), ", got one on ", local.device());
  static const std::string name = "from_local";
  return run_as_call(name, local, impl_of(mesh).get(), [&] {
    // Dimensions of the tensor do not count on ranks outside the mesh.
    const bool outside = !mesh.is_member() && !sizes.empty();
    const auto ndim = outside ? static_cast<std::int64_t>(sizes.size()) : local.dim();
    placements = normalize_placements(std::move(placements), ndim, mesh.shape());
    return DTensor(wrap_local(local, infer_spec(local, impl_of(mesh), std::move(placements), sizes, strides)));
  });
}

at::Tensor DTensor::full_tensor(Placements grad_placements) const {
  const auto& spec = checked_impl(*this).spec();
  TORCH_CHECK(spec->mesh->is_member, "full_tensor: expected a rank of the mesh, but world rank ",
              spec->mesh->world_rank, " is outside the mesh of ", spec->str());
  // Every rank then has the same values and, by default, the same gradient.
  const bool explicit_grad = !grad_placements.empty();
  static const std::string name = "full_tensor";
  return run_as_call(name, *this, nullptr, [&] {
    return unwrap_local(redistribute(Placements(placements().size())), std::move(grad_placements), !explicit_grad);
  });
}

namespace {

// Redistributes in place if possible. A gradient with a graph (create_graph) becomes another tensor of that graph.
void move_gradient(const DTensor& tensor, const Placements& placements) {
  DTensor gradient(tensor.grad());
  if (gradient.is_leaf() && !gradient.is_view() && gradient.mesh() == tensor.mesh()) {
    gradient.redistribute_(placements);
  } else {
    tensor.mutable_grad() = gradient.redistribute(tensor.mesh(), placements);
  }
}

}  // namespace

DTensor& DTensor::redistribute_(Placements placements) {
  auto* impl = dtensor_or_null(*this);
  TORCH_CHECK(impl != nullptr, "redistribute_: undefined DTensor");
  TORCH_CHECK(is_leaf() && !is_view(), "redistribute_: expected a leaf that is not a view, got ", spec_str(),
              "; use redistribute");
  placements = normalize_placements(std::move(placements), dim(), impl->spec()->mesh->layout.shape);
  auto to = with_placements(*impl->spec(), placements);
  auto local = redistribute_local_of(*impl, placements);
  if (is_dtensor(grad())) move_gradient(*this, replicate_partials(std::move(placements)));
  impl->reset(std::move(to), std::move(local));
  return *this;
}

DTensor distribute_tensor(const at::Tensor& tensor, const DeviceMesh& mesh, Placements placements) {
  ensure_registered();
  TORCH_CHECK(tensor.defined(), "distribute_tensor: expected a defined tensor, got an undefined one");
  TORCH_CHECK(mesh, "distribute_tensor: expected a mesh, got an empty DeviceMesh");
  check_has_memory(tensor, "distribute_tensor");
  static const std::string name = "distribute_tensor";
  return run_as_call(name, tensor, impl_of(mesh).get(), [&] {
    placements = normalize_placements(std::move(placements), tensor.dim(), mesh.shape());
    if (is_dtensor(tensor)) return DTensor(tensor).redistribute(mesh, std::move(placements));
    return DTensor(distribute_regular_tensor(broadcast_if_different(tensor, *impl_of(mesh)), impl_of(mesh),
                                             std::move(placements)));
  });
}

DTensor distribute_tensor_from(const at::Tensor& tensor, const DeviceMesh& mesh, Placements placements, int source) {
  ensure_registered();
  TORCH_CHECK(tensor.defined(), "distribute_tensor_from: expected a defined tensor, got an undefined one");
  TORCH_CHECK(mesh, "distribute_tensor_from: expected a mesh, got an empty DeviceMesh");
  check_has_memory(tensor, "distribute_tensor_from");
  const auto ranks = mesh.ranks();
  const auto root = std::find(ranks.begin(), ranks.end(), source);
  TORCH_CHECK(root != ranks.end(), "distribute_tensor_from: source rank ", source, " is not in ", mesh.str());
  static const std::string name = "distribute_tensor_from";
  return run_as_call(name, tensor, impl_of(mesh).get(), [&] {
    placements = normalize_placements(std::move(placements), tensor.dim(), mesh.shape());
    if (tensor.is_meta()) return DTensor(distribute_regular_tensor(tensor, impl_of(mesh), std::move(placements)));
    auto full = tensor.detach().to(mesh.device_type()).clone(at::MemoryFormat::Contiguous);
    if (mesh.is_member()) mesh.communicator().broadcast(full, static_cast<int>(root - ranks.begin())).wait();
    return DTensor(distribute_regular_tensor(full, impl_of(mesh), std::move(placements)));
  });
}

// Does not communicate, so that a debugger can print a tensor.
std::ostream& operator<<(std::ostream& out, const DTensor& tensor) {
  if (!tensor.defined()) return out << "DTensor(undefined)";
  const auto* impl = dtensor_or_null(tensor);
  out << "DTensor(" << impl->spec()->str() << ", local on rank " << impl->spec()->mesh->world_rank << ":\n";
  return impl->local().defined() ? out << impl->local().detach() << ")" : out << "none)";
}

}  // namespace dtensor
