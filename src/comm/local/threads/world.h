// One run_local: the state that all its thread ranks share.
#pragma once

#include <c10/util/ArrayRef.h>
#include <c10/util/FunctionRef.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "comm/record/rank_record.h"
#include "dtensor/comm.h"

namespace dtensor::local {

class World {
 public:
  World(int size, RunOptions options, bool oversubscribed);

  int size() const { return static_cast<int>(ranks_.size()); }
  std::chrono::milliseconds timeout() const { return options_.timeout; }
  int spins() const { return spins_; }

  // The first failure ends the run: every current and later wait throws its text.
  void fail(std::string text);
  bool failed() const { return failed_.load(); }
  std::string failure() const;
  [[noreturn]] void throw_failure() const;

  // The rank's function has returned or thrown; the rank makes no further calls.
  void leave(std::int64_t rank) { ranks_[rank].left.store(true, std::memory_order_release); }
  bool left(std::int64_t rank) const { return ranks_[rank].left.load(std::memory_order_acquire); }

  // The recent calls of each rank, for reports.
  void set_record(std::int64_t rank, std::shared_ptr<RankRecord> record) { ranks_[rank].record = std::move(record); }
  const std::shared_ptr<RankRecord>& record(std::int64_t rank) const { return ranks_[rank].record; }
  // The earlier errors of these ranks, as the beginning of a message.
  std::string failed_before(c10::ArrayRef<std::int64_t> ranks) const;
  // "; last of rank 0: ...; last of rank 2: ...", for the first few ranks.
  std::string recent(c10::ArrayRef<std::int64_t> ranks) const;

  // Records the operation of a waiting rank and the ranks it waits for; called repeatedly during the wait. Returns
  // true on a deadlock: the awaited ranks wait for this rank, directly or through others.
  bool post_wait(std::int64_t rank, const std::string& operation,
                 c10::function_ref<std::vector<std::int64_t>()> missing);
  void end_wait(std::int64_t rank);
  // "rank 2 waits in all_reduce #3 ...", or another description of its state.
  std::string describe_wait(std::int64_t rank) const;

 private:
  struct Rank {
    std::atomic<bool> left{false};
    std::string operation;              // empty: not waiting
    std::vector<std::int64_t> missing;  // awaited ranks at its last check
    std::uint64_t first_check = 0, last_check = 0;
    std::shared_ptr<RankRecord> record;  // set before any rank starts
  };
  std::vector<std::int64_t> find_wait_cycle(std::int64_t rank) const;

  RunOptions options_;
  int spins_;
  std::atomic<bool> failed_{false};
  mutable std::mutex mutex_;
  std::string failure_;
  std::uint64_t checks_ = 0;
  std::vector<Rank> ranks_;
};

}  // namespace dtensor::local
