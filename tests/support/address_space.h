// Limits the address space of a process, as `ulimit -v` does.
#pragma once

#include <sys/resource.h>
#include <unistd.h>

#include <cstdint>
#include <fstream>

namespace dtensor::test {

inline std::uint64_t mapped_bytes() {
  std::uint64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return pages * static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
}

// Permanently limits this process to `bytes` more than it has mapped.
inline void limit_address_space(std::uint64_t bytes) {
  const rlim_t most = mapped_bytes() + bytes;
  const rlimit limit{most, most};
  setrlimit(RLIMIT_AS, &limit);
}

// Limits it during the lifetime of the object.
class AddressSpaceLimit {
 public:
  explicit AddressSpaceLimit(std::uint64_t bytes) {
    getrlimit(RLIMIT_AS, &before_);
    const rlimit limit{mapped_bytes() + bytes, before_.rlim_max};
    setrlimit(RLIMIT_AS, &limit);
  }
  AddressSpaceLimit(const AddressSpaceLimit&) = delete;
  AddressSpaceLimit& operator=(const AddressSpaceLimit&) = delete;
  ~AddressSpaceLimit() { setrlimit(RLIMIT_AS, &before_); }

 private:
  rlimit before_{};
};

}  // namespace dtensor::test
