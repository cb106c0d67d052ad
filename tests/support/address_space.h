// A process that has little memory left, as under `ulimit -v`.
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

// This process may map `bytes` more than it has, and never more again.
inline void limit_address_space(std::uint64_t bytes) {
  const rlim_t most = mapped_bytes() + bytes;
  const rlimit limit{most, most};
  setrlimit(RLIMIT_AS, &limit);
}

// The same while it lives.
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
