// Linux: sysconf and the cgroup files of version 2 or 1. A container has its own cgroup at the root of the tree. A job
// that a batch system put into a nested cgroup gets the memory of the machine here.
#include "comm/memory/pool/available_memory.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>

namespace dtensor {

std::size_t available_memory(const std::string& cgroup) {
  auto bytes = static_cast<std::size_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  for (const char* name : {"/memory.max", "/memory/memory.limit_in_bytes"}) {
    std::ifstream file(cgroup + name);
    std::size_t limit = 0;
    if (file >> limit) bytes = std::min(bytes, limit);  // "max" is not a number
  }
  return bytes;
}

}  // namespace dtensor
