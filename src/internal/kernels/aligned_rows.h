// Rows of matrices for devices whose fast kernels for products need aligned rows.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "dtensor/export.h"

namespace dtensor {

// The number of elements of a row that products on this device compute fast: `width` rounded up to a multiple of 64 if
// the device takes GPU kernels (gpu_kernels.h), the dtype has 16 bits and `width` elements are no multiple of 16 bytes;
// else `width`.
DTENSOR_API std::int64_t aligned_width(std::int64_t width, at::ScalarType dtype, c10::DeviceType device);

// `matrix` with zero rows at the end, a multiple as above. `matrix` itself if it has that many.
DTENSOR_API at::Tensor with_aligned_rows(const at::Tensor& matrix);

}  // namespace dtensor
