// The list of declared device types.
#include "comm/memory/pool/host_memory.h"

#include <atomic>

#include "dtensor/comm_backend.h"
#include "internal/host_memory.h"

namespace dtensor {
namespace {

static_assert(c10::COMPILE_TIME_MAX_DEVICE_TYPES <= 64);
std::atomic<std::uint64_t> declared{std::uint64_t{1} << static_cast<int>(c10::DeviceType::CPU)};

}  // namespace

void declare_host_memory(c10::DeviceType device) { declared |= std::uint64_t{1} << static_cast<int>(device); }

bool in_host_memory(c10::DeviceType device) { return (declared.load() >> static_cast<int>(device) & 1) != 0; }

}  // namespace dtensor
