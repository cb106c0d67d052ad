// A checksum of a tensor that is the sum of its parts' checksums, however it was cut: each element's bits are mixed
// with its global index, and the results are added.
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

// Of `count` consecutive elements of `item` (1, 2, 4 or 8) bytes, the first of which has global index `first`.
Checksum checksum(const char* data, std::int64_t item, std::int64_t count, std::int64_t first);

// What `copies` of the same give.
inline Checksum times(const Checksum& one, std::int64_t copies) {
  return {one.sum * static_cast<std::uint64_t>(copies), one.count * copies};
}

}  // namespace dtensor::files
