// The switches of internal/kernels/gpu_kernels.h. They are here because rules read them: for a device that takes a
// kernel, a rule names the local kernel that calls it.
#include "internal/kernels/gpu_kernels.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>

namespace dtensor {
namespace {

// Names in DTENSOR_DISABLE_KERNELS, in the order of GpuKernel.
constexpr std::array<std::string_view, static_cast<std::size_t>(GpuKernel::kCount)> kNames{
    "aligned_rows", "layer_norm", "loss", "grouped_experts", "swiglu"};

std::uint64_t bit_of(c10::DeviceType device) { return std::uint64_t{1} << static_cast<int>(device); }

// The devices that take each kernel, as bits.
using Devices = std::array<std::atomic<std::uint64_t>, kNames.size()>;

void disable(Devices& devices, std::string_view names) {
  while (!names.empty()) {
    const auto name = names.substr(0, names.find(','));
    names.remove_prefix(std::min(names.size(), name.size() + 1));
    const auto* found = std::find(kNames.begin(), kNames.end(), name);
    TORCH_CHECK_VALUE(found != kNames.end(), "DTENSOR_DISABLE_KERNELS: expected names of ", c10::Join(", ", kNames),
                      ", separated by commas, got ", name);
    devices[static_cast<std::size_t>(found - kNames.begin())] = 0;
  }
}

struct State {
  Devices devices;

  State() {
    for (auto& bits : devices) bits = ~bit_of(c10::DeviceType::CPU);
    const char* const names = std::getenv("DTENSOR_DISABLE_KERNELS");
    if (names != nullptr) disable(devices, names);
  }
};

Devices& devices() {
  static State state;
  return state.devices;
}

}  // namespace

bool takes_gpu_kernel(GpuKernel kernel, c10::DeviceType device) {
  return (devices()[static_cast<std::size_t>(kernel)] & bit_of(device)) != 0;
}

void set_takes_gpu_kernels(c10::DeviceType device, bool takes) {
  for (auto& bits : devices()) takes ? bits |= bit_of(device) : bits &= ~bit_of(device);
}

void disable_gpu_kernels(std::string_view names) { disable(devices(), names); }

}  // namespace dtensor
