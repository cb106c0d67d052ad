// The operators that a rank has called on a mesh: a hash over all calls, and the text of the most recent ones. Ranks
// of a mesh make the same calls, so hashes that meet in a collective are equal. If not, the texts show the first
// difference.
#pragma once

#include <c10/util/ArrayRef.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "comm/record/number_calls.h"
#include "dtensor/comm_backend.h"

namespace dtensor {

// One operator call. `text` has a '%' for each of `numbers`, whose values vary and are compared.
struct OperatorCall {
  static constexpr std::size_t kMaxNumbers = 4;
  std::uint64_t hash = 0;  // of everything that must be equal, including the numbers
  const std::string* text = nullptr;
  const std::string* module = nullptr;  // null: none
  c10::ArrayRef<double> numbers = {};   // the first kMaxNumbers
};

class CallHistory {
 public:
  static constexpr std::size_t kKept = 128;
  static constexpr std::uint64_t kNone = 1;  // the signature of a rank under Checked that has called no operator
  // Set in CollectiveCall::signature if it is that of numbers, not of all calls under Checked.
  static constexpr std::uint64_t kOfNumbers = std::uint64_t{1} << 63;

  CallHistory() = default;
  ~CallHistory() { delete entries_.load(), delete nodes_.load(); }
  CallHistory(const CallHistory&) = delete;
  CallHistory& operator=(const CallHistory&) = delete;

  void add(const OperatorCall& call);
  std::uint64_t operators() const { return operators_.load(std::memory_order_relaxed); }
  std::uint64_t signature() const { return signature_.load(std::memory_order_relaxed); }

  // Compared where Checked has recorded no call.
  NumberCalls& numbers() const { return numbers_; }

  // The number of the next tensor of the mesh, in order of creation; 1 for the first.
  std::uint32_t count_tensor() {
    const auto number = tensors_.load(std::memory_order_relaxed) + 1;
    tensors_.store(number, std::memory_order_relaxed);
    return number;
  }

  // The recent calls, latest last. Callable from any thread.
  struct Line {
    std::uint64_t number = 0;     // 1 for the first operator
    std::uint64_t signature = 0;  // over all calls up to this one
    std::string text;
  };
  std::vector<Line> lines() const;

  // The module in which an autograd node was created, by the node's sequence number; null: not stored any more.
  void note_node(std::uint64_t node, const std::string* module);
  const std::string* module_of_node(std::uint64_t node) const;

 private:
  struct Entry {
    std::atomic<std::uint64_t> number{0}, signature{0};
    std::atomic<const std::string*> text{nullptr}, module{nullptr};
    std::array<std::atomic<double>, OperatorCall::kMaxNumbers> numbers{};
  };
  struct Node {
    std::atomic<std::uint64_t> number{0};
    std::atomic<const std::string*> module{nullptr};
  };
  static constexpr std::size_t kNodes = 4096;
  using Entries = std::array<Entry, kKept>;
  using Nodes = std::array<Node, kNodes>;
  static std::string text_of(const Entry& entry);

  std::atomic<std::uint64_t> operators_{0}, signature_{0};
  std::atomic<std::uint32_t> tensors_{0};
  mutable NumberCalls numbers_;
  // Allocated on first use: most meshes are never checked, and many programs name no modules.
  std::atomic<Entries*> entries_{nullptr};
  std::atomic<Nodes*> nodes_{nullptr};
};

// The calls of one member of a communicator.
struct RankCalls {
  std::int64_t rank = 0;
  std::uint64_t operators = 0, signature = 0;
  std::vector<CallHistory::Line> lines;
};

// The calls of this rank, from the counts in `call` and its stored history.
RankCalls calls_of(std::int64_t rank, const CollectiveCall& call);

inline bool is_of_numbers(std::uint64_t signature) { return (signature & CallHistory::kOfNumbers) != 0; }
// Whether two ranks' calls are compared: both are under Checked, or both made equally many calls with numbers. Takes a
// CollectiveCall, a header of one, or RankCalls.
template <class Call>
bool are_comparable(const Call& a, const Call& b) {
  if (a.signature == 0 || b.signature == 0 || is_of_numbers(a.signature) != is_of_numbers(b.signature)) return false;
  return !is_of_numbers(a.signature) || a.operators == b.operators;
}
template <class Call>
bool same_operators(const Call& a, const Call& b) {
  return a.signature == b.signature || !are_comparable(a, b);
}

// "first in call 17: rank 0 called aten::sum(...) in h.0; ranks 1, 2 called aten::mean(...) in h.0"; empty if all
// calls are equal, or not all are comparable.
std::string first_difference(const std::vector<RankCalls>& members);
// The same as a part of a message, with what to do if numbers differ.
std::string describe_difference(const std::vector<RankCalls>& members);

}  // namespace dtensor
