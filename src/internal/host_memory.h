// Devices whose memory the host can use.
#pragma once

#include <c10/core/DeviceType.h>

#include "dtensor/export.h"

namespace dtensor {

// Declares that this process can read and write tensors of this device type directly (unified memory, a device made by
// a test). Thread ranks then handle them like CPU tensors.
DTENSOR_API void declare_host_memory(c10::DeviceType device);

}  // namespace dtensor
