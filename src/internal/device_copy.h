// Copies to a device for which the host does not wait.
#pragma once

#include <ATen/core/Tensor.h>

#include "internal/simulated.h"

namespace dtensor {

// From pinned memory, since other copies block. ATen's allocator reuses that memory after the copy only.
inline at::Tensor copy_without_wait(const at::Tensor& host, c10::Device device) {
  if (device.is_cpu() || is_simulating()) return host.to(device);
  return host.pin_memory().to(device, host.scalar_type(), /*non_blocking=*/true);
}

}  // namespace dtensor
