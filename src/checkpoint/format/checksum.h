// A checksum that is additive over the parts of a tensor: the sum of each element's bits mixed with its global index.
#pragma once

#include <cstdint>

namespace dtensor::files {

struct Checksum {
  std::uint64_t sum = 0;
  std::int64_t count = 0;  // elements

  Checksum& operator+=(const Checksum& other) {
    sum += other.sum;
    count += other.count;
    return *this;
  }
  friend bool operator==(const Checksum&, const Checksum&) = default;
};

// Checksum of `count` consecutive elements of `item` bytes (1, 2, 4 or 8); `first` is the first global index.
Checksum checksum(const char* data, std::int64_t item, std::int64_t count, std::int64_t first);

// The sum of `copies` equal checksums.
inline Checksum times(const Checksum& one, std::int64_t copies) {
  return {one.sum * static_cast<std::uint64_t>(copies), one.count * copies};
}

}  // namespace dtensor::files
