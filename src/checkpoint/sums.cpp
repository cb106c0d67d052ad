// Sums mod 2^64 by sums of their halves, which do not overflow.
#include "checkpoint/sums.h"

#include "checkpoint/talk.h"

namespace dtensor::files {

std::vector<Checksum> add_up(const Communicator& ranks, const std::vector<Checksum>& own) {
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
