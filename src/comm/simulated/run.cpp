// Starts the ranks of a dry run. Those that exchange messages do so as thread ranks.
#include <ATen/ThreadLocalState.h>
#include <c10/core/AutogradState.h>

#include <algorithm>
#include <numeric>

#include "comm/error_messages.h"
#include "comm/launch/rank_exit.h"
#include "comm/local/backend.h"
#include "comm/local/threads/thread_pool.h"
#include "comm/record/rank_record.h"
#include "comm/simulated/backend.h"
#include "comm/simulated/world.h"
#include "internal/ranks/simulated_rank.h"

namespace dtensor {

local::World& SimulatedWorld::threads() {
  if (threads_ == nullptr)
    threads_ = std::make_shared<local::World>(which_.ranks, RunOptions{}, /*oversubscribed=*/true);
  return *threads_;
}

void SimulatedWorld::start(const std::vector<std::int64_t>& ranks) {
  const std::lock_guard lock(mutex_);
  for (const auto rank : ranks) {
    auto& record = started_[rank];
    if (record != nullptr) continue;
    record = std::make_shared<RankRecord>(rank, which_.ranks);
    running_.push_back(std::async(std::launch::async,
                                  [this, rank, record] { local::run_on_threads(1, [&](int) { run(rank, record); }); }));
  }
  if (started_.size() == 1) return;
  for (const auto& [rank, record] : started_) {
    if (threads().record(rank) == nullptr) threads().set_record(rank, record);
  }
}

void SimulatedWorld::join() {
  for (;;) {
    std::vector<std::future<void>> running;
    {
      const std::lock_guard lock(mutex_);
      running.swap(running_);
    }
    if (running.empty()) return;
    for (auto& rank : running) rank.wait();
  }
}

void SimulatedWorld::run(std::int64_t rank, const std::shared_ptr<RankRecord>& record) {
  const RankThreadScope thread(*record);
  const at::ThreadLocalStateGuard left_as_found{at::ThreadLocalState()};
  // Backward runs on this thread, as it does on thread ranks.
  c10::AutogradState::set_tls_state(c10::AutogradState(true, false, true, /*multithreading_enabled=*/false));
  std::vector<std::int64_t> all(static_cast<std::size_t>(which_.ranks));
  std::iota(all.begin(), all.end(), std::int64_t{0});
  try {
    auto backend = std::make_shared<SimulatedBackend>(static_cast<int>(rank), std::move(all), shared_from_this());
    backend->set_asynchronous(which_.asynchronous);
    backend->set_staging(which_.staging);
    backend->set_record(record);
    fn_(Communicator(std::move(backend)));  // without Checked: there are no values and no peers to compare
  } catch (...) {
    fail(rank);
  }
  run_rank_exit_hooks();
  const std::lock_guard lock(mutex_);
  if (threads_ != nullptr) threads_->leave(rank);
}

// In an exception handler.
void SimulatedWorld::fail(std::int64_t rank) {
  const std::string text = current_exception_text();
  failure_.record_current(static_cast<int>(rank));
  const std::lock_guard lock(mutex_);
  if (threads_ != nullptr) threads_->fail("rank " + std::to_string(rank) + " failed: " + text);
}

std::shared_ptr<CommBackend> SimulatedWorld::connect(int me, const std::vector<std::int64_t>& ranks) {
  const std::lock_guard lock(mutex_);
  Groups& groups = groups_[ranks];
  const std::size_t n = groups.fetched[me]++;
  if (n == groups.made.size()) groups.made.push_back(std::make_shared<local::Group>(threads_, ranks, ""));
  return local::make_backend(groups.made[n], me);
}

void run_simulated_rank(const SimulatedRanks& which, const std::function<void(Communicator)>& fn) {
  const auto world = std::make_shared<SimulatedWorld>(which, fn);
  world->start({which.rank});
  world->join();
  const auto failed = world->result();
  if (!failed.error) return;
  if (failed.rank == which.rank) std::rethrow_exception(failed.error);
  local::rethrow(failed);
}

void simulate_all_members(const Communicator& group) {
  if (auto* simulated = dynamic_cast<SimulatedBackend*>(backend_of(group).get())) simulated->run_all_members();
}

}  // namespace dtensor
