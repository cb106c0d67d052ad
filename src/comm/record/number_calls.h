// The numbers that a rank has passed to operators on a mesh: floats, Scalars and 0-dimensional regular tensors beside
// DTensors. They must be equal on all ranks, as larger regular tensors must. Ranks compare them with the headers of
// their collectives: all numbers since the communicator's previous collective, if the ranks made equally many calls
// (a rank may make a call of its own, for a line of its log). This costs no message.
#pragma once

#include <c10/core/ScalarType.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "comm/record/hash.h"

namespace dtensor {

// The numbers of one call, in the order of its arguments.
struct CallNumbers {
  std::uint64_t hash = 0;   // 0: the call has none
  std::uint64_t first = 0;  // bits of the first number
  at::ScalarType type = at::kLong;

  void add(std::uint64_t bits, at::ScalarType of) {
    if (hash == 0) first = bits, type = of;
    hash = hash_combine(hash + 1, bits) | 1;
  }
  std::string str() const;  // the first number
};

class NumberCalls {
 public:
  static constexpr std::size_t kKept = 32;

  // `op` must live as long as the program.
  void add(const std::string& op, const CallNumbers& numbers) {
    const auto count = count_.load(std::memory_order_relaxed);
    Entry& entry = entries_[count % kKept];
    entry.op.store(&op, std::memory_order_relaxed);
    entry.hash.store(numbers.hash, std::memory_order_relaxed);
    entry.first.store(numbers.first, std::memory_order_relaxed);
    entry.type.store(numbers.type, std::memory_order_relaxed);
    sum_.store(sum_.load(std::memory_order_relaxed) + numbers.hash, std::memory_order_relaxed);
    count_.store(count + 1, std::memory_order_release);
  }

  struct Interval {
    std::uint64_t calls = 0;
    std::uint64_t hash = 0;  // of the last kKept of them, in order, and of the sum over all; 0: none
  };
  // The calls since the previous collective on this communicator, whose next interval begins.
  Interval take(const void* communicator);

  struct Call {
    std::uint64_t hash;
    std::string text;  // "aten::mul.Tensor with 2"
  };
  // The last `calls` ones that are stored. Callable from any thread.
  std::vector<Call> last(std::uint64_t calls) const;

 private:
  struct Entry {
    std::atomic<const std::string*> op{nullptr};
    std::atomic<std::uint64_t> hash{0}, first{0};
    std::atomic<at::ScalarType> type{at::kLong};
  };

  struct Begin {
    const void* communicator;
    std::uint64_t count, sum;
  };

  std::atomic<std::uint64_t> count_{0}, sum_{0};
  std::array<Entry, kKept> entries_;
  std::mutex mutex_;
  std::vector<Begin> begins_;  // of the intervals
};

}  // namespace dtensor
