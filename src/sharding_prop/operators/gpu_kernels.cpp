// The devices of internal/kernels/gpu_kernels.h. Rules name other local kernels for them.
#include "internal/kernels/gpu_kernels.h"

#include <atomic>
#include <cstdint>

namespace dtensor {
namespace {

std::uint64_t bit_of(c10::DeviceType device) { return std::uint64_t{1} << static_cast<int>(device); }

std::atomic<std::uint64_t> devices{~bit_of(c10::DeviceType::CPU)};

}  // namespace

bool takes_gpu_kernels(c10::DeviceType device) { return (devices & bit_of(device)) != 0; }

void set_takes_gpu_kernels(c10::DeviceType device, bool takes) {
  takes ? devices |= bit_of(device) : devices &= ~bit_of(device);
}

}  // namespace dtensor
