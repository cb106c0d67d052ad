// One run_local: what all its thread ranks share, whatever communicator they use.
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

  // The first failure ends everything: every wait, now and later, throws its text.
  void fail(std::string text);
  bool failed() const { return failed_.load(); }
  std::string failure() const;
  [[noreturn]] void throw_failure() const;

  // A rank's function has returned (or thrown): it will take part in nothing any more.
  void leave(std::int64_t rank) { ranks_[rank].left.store(true, std::memory_order_release); }
  bool left(std::int64_t rank) const { return ranks_[rank].left.load(std::memory_order_acquire); }

  // What each rank did last, for reports.
  void set_record(std::int64_t rank, std::shared_ptr<RankRecord> record) { ranks_[rank].record = std::move(record); }
  const std::shared_ptr<RankRecord>& record(std::int64_t rank) const { return ranks_[rank].record; }
  // What some of these ranks failed in before, as a message begins with it.
  std::string failed_before(c10::ArrayRef<std::int64_t> ranks) const;
  // "; last of rank 0: ...; last of rank 2: ...", of the first few.
  std::string recent(c10::ArrayRef<std::int64_t> ranks) const;

  // What a rank that has been waiting for a while waits in, and for whom; called again as long as it waits. True where
  // that can never end, because those it waits for wait for it, directly or by way of others.
  bool post_wait(std::int64_t rank, const std::string& operation,
                 c10::function_ref<std::vector<std::int64_t>()> missing);
  void end_wait(std::int64_t rank);
  // "rank 2 waits in all_reduce #3 ..." or what else can be said about it.
  std::string describe_wait(std::int64_t rank) const;

 private:
  struct Rank {
    std::atomic<bool> left{false};
    std::string operation;              // empty: not waiting
    std::vector<std::int64_t> missing;  // for whom, at its last look
    std::uint64_t first_check = 0, last_check = 0;
    std::shared_ptr<RankRecord> record;  // set before any rank begins
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
