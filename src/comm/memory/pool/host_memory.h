// Device types whose memory the CPU backends can read and write.
#pragma once

#include <c10/core/DeviceType.h>

namespace dtensor {

bool in_host_memory(c10::DeviceType device);  // the CPU, and declared types

}  // namespace dtensor
