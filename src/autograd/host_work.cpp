// Work in host memory, and copies between host and device, which memory timelines and dry runs tell apart.
#include "internal/host_work.h"

#include <algorithm>
#include <utility>

#include "dtensor/tensor.h"
#include "mesh/mesh_impl.h"

namespace dtensor {
namespace {

thread_local HostWork current_work = HostWork::none;

bool any_offloaded(at::TensorList parameters) {
  return std::any_of(parameters.begin(), parameters.end(),
                     [](const at::Tensor& t) { return is_dtensor(t) && is_offloaded(DTensor(t).mesh()); });
}

}  // namespace

HostWorkScope::HostWorkScope(HostWork work) : outer_(std::exchange(current_work, work)) {}
HostWorkScope::HostWorkScope(at::TensorList parameters)
    : HostWorkScope(any_offloaded(parameters) ? HostWork::compute : current_work) {}
HostWorkScope::~HostWorkScope() { current_work = outer_; }
HostWork HostWorkScope::current() { return current_work; }

bool is_offloaded(const DeviceMesh& mesh) { return impl_of(mesh)->compute_mesh() != nullptr; }

DeviceMesh compute_mesh_of(const DeviceMesh& mesh) {
  const auto* compute = impl_of(mesh)->compute_mesh();
  if (compute == nullptr) return mesh;
  return DeviceMesh(c10::intrusive_ptr<MeshImpl>::reclaim_copy(const_cast<MeshImpl*>(&as_mesh_impl(*compute))));
}

at::Tensor copy_to_host(const at::Tensor& local) {
  const HostWorkScope copies(HostWork::copy_to_host);
  return local.to(local.options().device(at::kCPU), /*non_blocking=*/false, /*copy=*/true);
}

at::Tensor copy_to_device(const at::Tensor& local, c10::Device device) {
  const HostWorkScope copies(HostWork::copy_to_device);
  return local.to(local.options().device(device), /*non_blocking=*/true, /*copy=*/true);
}

}  // namespace dtensor
