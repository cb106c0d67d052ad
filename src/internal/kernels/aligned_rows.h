// Rows of matrices for devices whose fast kernels for products need aligned rows.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "dtensor/export.h"

namespace dtensor {

// The number of elements of a row that products on this device compute fast: `width` rounded up to a multiple of 64 if
// the device needs aligned rows, the dtype has 16 bits and `width` elements are no multiple of 16 bytes; else `width`.
DTENSOR_API std::int64_t aligned_width(std::int64_t width, at::ScalarType dtype, c10::DeviceType device);

// Whether products on the device need aligned rows. Default: CUDA only. Tests set it for the CPU.
DTENSOR_API void set_needs_aligned_rows(c10::DeviceType device, bool needs);

// `matrix` with zero rows at the end, a multiple as above. `matrix` itself if it has that many.
DTENSOR_API at::Tensor with_aligned_rows(const at::Tensor& matrix);

}  // namespace dtensor
