// Work in host memory for tensors that are offloaded (DeviceMesh::offloaded), and copies between host and device.
#pragma once

#include <ATen/core/Tensor.h>

#include "dtensor/export.h"
#include "dtensor/mesh.h"

namespace dtensor {

enum class HostWork : std::uint8_t { none, compute, copy_to_host, copy_to_device };

// What this thread does during its lifetime. Timelines show the memory of the device, so they ignore what `compute` and
// `copy_to_host` allocate; dry runs count their operators as those of the host, and copies as transfers.
class DTENSOR_API HostWorkScope {
 public:
  explicit HostWorkScope(HostWork work);
  // `compute` if one of the parameters is offloaded.
  explicit HostWorkScope(at::TensorList parameters);
  ~HostWorkScope();
  HostWorkScope(const HostWorkScope&) = delete;
  HostWorkScope& operator=(const HostWorkScope&) = delete;

  static HostWork current();
  static bool allocates_on_host() { return current() == HostWork::compute || current() == HostWork::copy_to_host; }

 private:
  HostWork outer_;
};

// Whether local tensors of the mesh are in host memory and it computes on a device.
DTENSOR_API bool is_offloaded(const DeviceMesh& mesh);
// The mesh that computes with tensors of an offloaded one; `mesh` itself if it is not offloaded.
DTENSOR_API DeviceMesh compute_mesh_of(const DeviceMesh& mesh);

// Copies, also if the device is the CPU.
DTENSOR_API at::Tensor copy_to_host(const at::Tensor& local);
DTENSOR_API at::Tensor copy_to_device(const at::Tensor& local, c10::Device device);

}  // namespace dtensor
