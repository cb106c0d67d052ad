// Intervals of number calls, and their text.
#include "comm/record/number_calls.h"

#include <algorithm>
#include <bit>
#include <sstream>

namespace dtensor {

std::string CallNumbers::str() const {
  std::ostringstream out;
  if (type == at::kDouble) {
    out << std::bit_cast<double>(first);
  } else if (type == at::kFloat) {
    out << std::bit_cast<float>(static_cast<std::uint32_t>(first));
  } else if (c10::isIntegralType(type, /*includeBool=*/true)) {
    out << static_cast<std::int64_t>(first);
  } else {
    out << "a " << c10::toString(type) << " of bits " << first;
  }
  return out.str();
}

NumberCalls::Interval NumberCalls::take(const void* communicator) {
  const auto count = count_.load(std::memory_order_acquire), sum = sum_.load(std::memory_order_relaxed);
  const std::lock_guard lock(mutex_);
  auto begin =
      std::find_if(begins_.begin(), begins_.end(), [&](const auto& b) { return b.communicator == communicator; });
  if (begin == begins_.end()) begin = begins_.insert(begins_.end(), {communicator, 0, 0});
  Interval interval{count - begin->count, 0};
  const auto added = sum - begin->sum;
  *begin = {communicator, count, sum};
  if (interval.calls == 0) return interval;
  interval.hash = hash_combine(interval.calls, ~added);
  for (auto i = count - std::min<std::uint64_t>(interval.calls, kKept); i < count; ++i) {
    interval.hash = hash_combine(interval.hash, entries_[i % kKept].hash.load(std::memory_order_relaxed)) | 1;
  }
  return interval;
}

std::vector<NumberCalls::Call> NumberCalls::last(std::uint64_t calls) const {
  const auto count = count_.load(std::memory_order_acquire);
  std::vector<Call> result;
  for (auto i = count - std::min({calls, count, std::uint64_t{kKept}}); i < count; ++i) {
    const Entry& entry = entries_[i % kKept];
    const CallNumbers numbers{entry.hash.load(), entry.first.load(), entry.type.load()};
    result.push_back({numbers.hash, *entry.op.load() + " with " + numbers.str()});
  }
  return result;
}

}  // namespace dtensor
