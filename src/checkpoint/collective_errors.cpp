// The sum of checksums over ranks.
#include "checkpoint/collective_errors.h"

namespace dtensor::files {

// Sums modulo 2^64: the 32-bit halves are summed separately, so that int64 does not overflow.
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
