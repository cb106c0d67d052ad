// The operators that a rank has called on a mesh, as a hash over all and the last of them in words. Ranks of a mesh
// call the same, so the hashes are equal whenever they meet in a collective; where they are not, the words tell since
// when.
#pragma once

#include <c10/util/ArrayRef.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "dtensor/comm_backend.h"

namespace dtensor {

// One operator as it was called. `text` has a '%' for each of `numbers`, whose values count and change.
struct OperatorCall {
  static constexpr std::size_t kMaxNumbers = 4;
  std::uint64_t hash = 0;  // of everything that must be equal, the numbers included
  const std::string* text = nullptr;
  const std::string* module = nullptr;  // null: none
  c10::ArrayRef<double> numbers = {};   // the first few
};

class CallHistory {
 public:
  static constexpr std::size_t kKept = 128;
  static constexpr std::uint64_t kNone = 1;  // the signature of a rank under Checked that has called no operator

  CallHistory() = default;
  ~CallHistory() { delete entries_.load(), delete nodes_.load(); }
  CallHistory(const CallHistory&) = delete;
  CallHistory& operator=(const CallHistory&) = delete;

  void add(const OperatorCall& call);
  std::uint64_t operators() const { return operators_.load(std::memory_order_relaxed); }
  std::uint64_t signature() const { return signature_.load(std::memory_order_relaxed); }

  // Tensors of the mesh, as they are made: 1 for the first.
  std::uint32_t count_tensor() {
    const auto number = tensors_.load(std::memory_order_relaxed) + 1;
    tensors_.store(number, std::memory_order_relaxed);
    return number;
  }

  // The last calls, the latest last. Callable from any thread.
  struct Line {
    std::uint64_t number = 0;     // 1 for the first operator
    std::uint64_t signature = 0;  // over all up to this one
    std::string text;
  };
  std::vector<Line> lines() const;

  // The module in which an autograd node was made, by the node's sequence number; null: not known any more.
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
  // Made when first needed: most meshes are never checked, and many programs name no modules.
  std::atomic<Entries*> entries_{nullptr};
  std::atomic<Nodes*> nodes_{nullptr};
};

// What one member of a communicator says of its calls.
struct RankCalls {
  std::int64_t rank = 0;
  std::uint64_t operators = 0, signature = 0;
  std::vector<CallHistory::Line> lines;
};

// Of this rank, as the call says; of all that are remembered.
RankCalls calls_of(std::int64_t rank, const CollectiveCall& call);
// Whether both ends have called the same operators, as far as they say.
inline bool same_operators(const CollectiveCall& a, const CollectiveCall& b) {
  return a.signature == b.signature || a.signature == 0 || b.signature == 0;
}

// "first in call 17: rank 0 called aten::sum(...) in h.0; ranks 1, 2 called aten::mean(...) in h.0"; empty where all
// are equal.
std::string first_difference(const std::vector<RankCalls>& members);

}  // namespace dtensor
