// A process that has little memory left, as under `ulimit -v`.
#pragma once

#include <sys/resource.h>
#include <unistd.h>

#include <cstdint>
#include <fstream>

namespace dtensor::test {

// This process may map `bytes` more than it has, and never more again.
inline void leave_address_space(std::uint64_t bytes) {
  std::uint64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  const rlim_t most = pages * static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE)) + bytes;
  const rlimit limit{most, most};
  setrlimit(RLIMIT_AS, &limit);
}

}  // namespace dtensor::test
