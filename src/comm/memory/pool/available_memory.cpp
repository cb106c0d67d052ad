// Linux: sysconf, and the file of the control group in its second or first version. A container sees its own group at
// the root of the tree; a job that a batch system put into a group below it sees the whole machine here.
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
    if (file >> limit) bytes = std::min(bytes, limit);  // "max" is no number
  }
  return bytes;
}

}  // namespace dtensor
