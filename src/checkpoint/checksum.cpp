// The mix: Weyl sequence of the index added to the bits, then two rounds of xor-shift and odd multiplication. For a
// given index it is a bijection of the bits, so changing one element always changes the sum.
#include "checkpoint/checksum.h"

#include <c10/util/Exception.h>

#include <cstring>

#include "checkpoint/collective_errors.h"

namespace dtensor::files {
namespace {

std::uint64_t mix(std::uint64_t z) {
  z = (z ^ (z >> 32)) * 0xD6E8FEB86659FD93u;
  z = (z ^ (z >> 32)) * 0xD6E8FEB86659FD93u;
  return z ^ (z >> 32);
}

template <class Word>
std::uint64_t sum_of(const char* data, std::int64_t count, std::uint64_t first) {
  constexpr std::uint64_t kGolden = 0x9E3779B97F4A7C15u;
  std::uint64_t sum = 0, weyl = first * kGolden;
  for (std::int64_t i = 0; i < count; ++i, weyl += kGolden) {
    Word bits;
    std::memcpy(&bits, data + i * static_cast<std::int64_t>(sizeof bits), sizeof bits);
    sum += mix(bits + weyl);
  }
  return sum;
}

}  // namespace

Checksum checksum(const char* data, std::int64_t item, std::int64_t count, std::int64_t first) {
  const auto index = static_cast<std::uint64_t>(first);
  switch (item) {
    case 1:
      return {sum_of<std::uint8_t>(data, count, index), count};
    case 2:
      return {sum_of<std::uint16_t>(data, count, index), count};
    case 4:
      return {sum_of<std::uint32_t>(data, count, index), count};
    case 8:
      return {sum_of<std::uint64_t>(data, count, index), count};
    default:
      TORCH_CHECK(false, "checksum: elements of ", item, " bytes");
  }
}

// Sums mod 2^64 by sums of their halves, which do not overflow.
std::vector<Checksum> sum_over_ranks(const Communicator& ranks, const std::vector<Checksum>& own) {
  std::vector<std::int64_t> numbers;
  numbers.reserve(3 * own.size());
  for (const Checksum& c : own) {
    numbers.push_back(static_cast<std::int64_t>(c.sum & 0xFFFFFFFFu));
    numbers.push_back(static_cast<std::int64_t>(c.sum >> 32));
    numbers.push_back(c.count);
  }
  reduce_numbers(ranks, numbers, ReduceOp::sum);
  std::vector<Checksum> all;
  all.reserve(own.size());
  for (std::size_t i = 0; i < numbers.size(); i += 3) {
    all.push_back(
        {static_cast<std::uint64_t>(numbers[i]) + (static_cast<std::uint64_t>(numbers[i + 1]) << 32), numbers[i + 2]});
  }
  return all;
}

}  // namespace dtensor::files
