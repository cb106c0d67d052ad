// What a rank has done last, and which thread is which rank. One record serves all communicators of a rank; it is
// always on, bounded, and read by others only when something has gone wrong.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "dtensor/comm_backend.h"
#include "scope/thread_state.h"

namespace dtensor {

class RankRecord : public std::enable_shared_from_this<RankRecord> {
 public:
  // `run`: which run_local of this process; 0: none.
  RankRecord(std::int64_t rank, int size, std::uint64_t run = 0);

  // rank 1 of 4 of run 2
  const std::string& str() const { return name_; }

  // Names live for the program; null: a collective of no label. A few stores: no lock, no allocation.
  void note(const std::string& name) { add(&name, 0); }
  void note(CollectiveKind kind, std::uint64_t sequence, const std::string* label) {
    add(label, (static_cast<std::uint64_t>(kind) + 1) << kKindShift | sequence);
  }
  // The last operators and collectives, the latest last: "aten::mm, all_reduce #3 tp, aten::add.Tensor"; empty: none.
  // Callable from any thread.
  std::string recent() const;

  // An operator of this rank threw. A program that catches that and goes on may part from ranks on which it did not
  // throw, and they are then told of it. Forgotten when some more operators have been called.
  void record_error(std::string text);
  std::string last_error() const;  // empty: none. Callable from any thread

  // What this rank waited for did not come and nobody was told, since its Work was dropped.
  void mark_unreported_failure() { unreported_failure_.store(true); }
  bool has_unreported_failure() const { return unreported_failure_.load(); }

  // Whether this thread may act for this rank: it is the rank's own, or none of a thread rank's (a helper, autograd's).
  bool belongs_to_this_thread(const ThreadState& thread = thread_state()) const {
    return thread.rank == nullptr || thread.rank == this;
  }
  static const RankRecord* current() { return thread_state().rank; }
  std::shared_ptr<RankRecord> shared() const { return const_cast<RankRecord*>(this)->shared_from_this(); }

 private:
  static constexpr std::size_t kKept = 32;
  static constexpr unsigned kKindShift = 56;
  struct Entry {
    std::atomic<const std::string*> name{nullptr};
    std::atomic<std::uint64_t> collective{0};  // its kind and number; 0: an operator
  };

  // Threads of one rank may overwrite each other's entries, which costs an entry and nothing else.
  void add(const std::string* name, std::uint64_t collective) {
    const auto at = next_.load(std::memory_order_relaxed);
    Entry& entry = entries_[at % kKept];
    entry.collective.store(collective, std::memory_order_relaxed);
    entry.name.store(name, std::memory_order_release);
    next_.store(at + 1, std::memory_order_release);
  }

  std::string name_;
  std::atomic<std::uint64_t> next_{0};
  std::array<Entry, kKept> entries_;
  mutable std::mutex error_mutex_;
  std::string error_;
  std::atomic<std::uint64_t> error_at_{0};  // the entries before it, and one more; 0: none
  std::atomic<bool> unreported_failure_{false};
};

// "rank 1 failed: index 7 is out of bounds ...; then ", of ranks with their last errors; empty where all had the same,
// or none.
std::string failed_before(const std::vector<std::pair<std::int64_t, std::string>>& errors);

// While it lives, this thread is that rank.
class RankThreadScope {
 public:
  explicit RankThreadScope(const RankRecord& rank) : former_(thread_state().rank) { thread_state().rank = &rank; }
  ~RankThreadScope() { thread_state().rank = former_; }
  RankThreadScope(const RankThreadScope&) = delete;
  RankThreadScope& operator=(const RankThreadScope&) = delete;

 private:
  const RankRecord* former_;
};

// Throws, naming both ranks, for `what` that belongs to `owner` and is used by a thread of another rank.
[[noreturn]] void throw_wrong_rank(const RankRecord& owner, const std::string& what);

}  // namespace dtensor
