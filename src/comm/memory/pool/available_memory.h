// Memory available to all processes on this host or in this container.
#pragma once

#include <cstddef>
#include <string>

namespace dtensor {

// In bytes: the machine's memory, or the container's limit in `cgroup` if that is lower.
std::size_t available_memory(const std::string& cgroup = "/sys/fs/cgroup");

}  // namespace dtensor
