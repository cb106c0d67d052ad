// Decides which tensors are off the host, whose streams the host has to wait for.
#include "comm/local/device_memory.h"

#include <ATen/ATen.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "comm/memory/copy.h"
#include "comm/memory/pool/host_memory.h"
#include "internal/aten_scopes.h"

namespace dtensor::local {
namespace {

bool off_host(const at::Tensor& t) { return !in_host_memory(t.device().type()); }

}  // namespace

bool supports_device(c10::DeviceType device) {
  return in_host_memory(device) || (device != c10::DeviceType::Meta && c10::impl::hasDeviceGuardImpl(device));
}

bool on_device(at::TensorList tensors) { return !tensors.empty() && off_host(tensors[0]); }

void synchronize_streams(at::TensorList tensors) {
  std::optional<c10::Device> settled;
  for (const at::Tensor& t : tensors) {
    if (!off_host(t) || settled == t.device()) continue;
    settled = t.device();
    const c10::impl::VirtualGuardImpl device(t.device().type());
    device.synchronizeStream(device.getStream(t.device()));
  }
}

void copy_across_devices(const at::Tensor& to, const at::Tensor& from) {
  if (!off_host(to) && !off_host(from)) return copy_tensor(to, from);
  const LocalBelowAutogradGuard regular;
  if (!to.is_same(from)) to.copy_(from);
}

}  // namespace dtensor::local
