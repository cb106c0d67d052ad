// The ranks of a dry run that run: the one that is asked for, and those that it cannot stand for.
#pragma once

#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "comm/local/group.h"
#include "comm/local/threads/first_failure.h"
#include "internal/ranks/simulated_rank.h"

namespace dtensor {

class SimulatedWorld : public std::enable_shared_from_this<SimulatedWorld> {
 public:
  SimulatedWorld(const SimulatedRanks& which, const std::function<void(Communicator)>& fn) : which_(which), fn_(fn) {}

  // Starts those that do not run yet, each on a thread of its own.
  void start(const std::vector<std::int64_t>& ranks);
  // Waits until all have ended.
  void join();
  // The first failure.
  local::RunResult result() const { return failure_.result(); }

  // Member `me` of these running ranks. The n-th call with the same list returns the same group on each member.
  std::shared_ptr<CommBackend> connect(int me, const std::vector<std::int64_t>& ranks);

 private:
  void run(std::int64_t rank, const std::shared_ptr<RankRecord>& record);
  void fail(std::int64_t rank);
  local::World& threads();

  const SimulatedRanks which_;
  const std::function<void(Communicator)>& fn_;
  local::FirstFailure failure_;
  std::mutex mutex_;
  std::map<std::int64_t, std::shared_ptr<RankRecord>> started_;
  std::vector<std::future<void>> running_;
  std::shared_ptr<local::World> threads_;  // Of the ranks that exchange messages; null while only one rank runs.
  struct Groups {
    std::vector<std::shared_ptr<local::Group>> made;
    std::map<int, std::size_t> fetched;  // number of connect() calls by member
  };
  std::map<std::vector<std::int64_t>, Groups> groups_;
};

}  // namespace dtensor
