// The recent calls of a rank, and the mapping from threads to ranks. One record serves all communicators of a rank. It
// is always on, bounded, and other ranks read it only for error messages.
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
  // `run` numbers the run_local calls of this process; 0: none.
  RankRecord(std::int64_t rank, int size, std::uint64_t run = 0);

  // Example: rank 1 of 4 of run 2.
  const std::string& str() const { return name_; }

  // Names must live as long as the program; null: a collective without label. Costs a few stores: no lock, no
  // allocation.
  void note(const std::string& name) { add(&name, 0); }
  void note(CollectiveKind kind, std::uint64_t sequence, const std::string* label) {
    add(label, (static_cast<std::uint64_t>(kind) + 1) << kKindShift | sequence);
  }
  // The recent operators and collectives, latest last: "aten::mm, all_reduce #3 on tp, aten::add.Tensor"; empty: none.
  // Callable from any thread.
  std::string recent() const;

  // Records that an operator of this rank threw. If the program catches the error and continues, it may diverge from
  // ranks without it; their messages then include it. Dropped after a few more operators.
  void record_error(std::string text);
  std::string last_error() const;  // empty: none; callable from any thread

  // A wait of this rank failed without a report, since its Work was destroyed.
  void mark_unreported_failure() { unreported_failure_.store(true); }
  bool has_unreported_failure() const { return unreported_failure_.load(); }

  // Whether this thread may act for this rank: it is the rank's own thread, or no thread of a rank (a helper,
  // autograd's).
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

  // Threads of one rank may overwrite each other's entries, which only loses an entry.
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
  std::atomic<std::uint64_t> error_at_{0};  // next_ at the error, plus one; 0: none
  std::atomic<bool> unreported_failure_{false};
};

// "rank 1 failed: index 7 is out of bounds ...; then ", for ranks with their last errors; empty if all errors are
// equal or there are none.
std::string failed_before(const std::vector<std::pair<std::int64_t, std::string>>& errors);

// During its lifetime, this thread acts as that rank.
class RankThreadScope {
 public:
  explicit RankThreadScope(const RankRecord& rank) : former_(thread_state().rank) { thread_state().rank = &rank; }
  ~RankThreadScope() { thread_state().rank = former_; }
  RankThreadScope(const RankThreadScope&) = delete;
  RankThreadScope& operator=(const RankThreadScope&) = delete;

 private:
  const RankRecord* former_;
};

// Throws an error that names both ranks: `what` belongs to `owner` and is used by a thread of another rank.
[[noreturn]] void throw_wrong_rank(const RankRecord& owner, const std::string& what);

}  // namespace dtensor
