// Which devices take the kernels that replace ATen's on GPUs (docs/design/gpu_speed.md).
#pragma once

#include <c10/core/DeviceType.h>

#include "dtensor/export.h"

namespace dtensor {

// Default: every device except the CPU, whose ATen kernels need no replacement. Tests set it for the CPU, and then
// clear the decision cache.
DTENSOR_API bool takes_gpu_kernels(c10::DeviceType device);
DTENSOR_API void set_takes_gpu_kernels(c10::DeviceType device, bool takes);

}  // namespace dtensor
