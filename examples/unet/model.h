// A U-Net for volumes in ATen: 12 convolutions on three levels, with group norms. Written for one device; it runs on
// DTensors whose spatial dimensions are sharded.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace unet {

inline constexpr std::int64_t kConvolutions = 12;

// For each convolution its weight and bias; for each but the last, then the gain and the offset of its group norm.
using Parameters = std::vector<at::Tensor>;
Parameters random_parameters(std::int64_t channels, std::uint64_t seed);

// `volume` [N, 1, depth, height, width], with sizes that are multiples of 4. Returns the same sizes.
at::Tensor forward(const Parameters& parameters, const at::Tensor& volume);

}  // namespace unet
