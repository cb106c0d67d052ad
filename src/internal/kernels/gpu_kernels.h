// Which devices take the kernels that replace ATen's on GPUs (docs/design/gpu_speed.md).
#pragma once

#include <c10/core/DeviceType.h>

#include <cstdint>
#include <string_view>

#include "dtensor/export.h"

namespace dtensor {

// aligned_rows: padding of matrices (aligned_rows.h). layer_norm: row_norm. loss: cross entropy. grouped_experts:
// experts multiply by at::_grouped_mm. swiglu: the activation of experts.
enum class GpuKernel : std::uint8_t { aligned_rows, layer_norm, loss, grouped_experts, swiglu, kCount };

// Default: every device except the CPU, whose ATen kernels need no replacement. The environment variable
// DTENSOR_DISABLE_KERNELS lists kernels that no device takes, for comparisons of speed: "layer_norm,loss".
DTENSOR_API bool takes_gpu_kernel(GpuKernel kernel, c10::DeviceType device);

// For tests, which then clear the decision cache: sets all kernels of a device, and disables a list on all devices.
DTENSOR_API void set_takes_gpu_kernels(c10::DeviceType device, bool takes);
DTENSOR_API void disable_gpu_kernels(std::string_view names);

}  // namespace dtensor
