// How much memory processes here may have together.
#pragma once

#include <cstddef>
#include <string>

namespace dtensor {

// In bytes: the machine's memory, or the limit of the container below `cgroup` if that is lower.
std::size_t available_memory(const std::string& cgroup = "/sys/fs/cgroup");

}  // namespace dtensor
