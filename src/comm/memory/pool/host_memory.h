// Which device types have memory that the backends of CPUs may read and write.
#pragma once

#include <c10/core/DeviceType.h>

namespace dtensor {

bool in_host_memory(c10::DeviceType device);  // the CPU's, and what was declared

}  // namespace dtensor
