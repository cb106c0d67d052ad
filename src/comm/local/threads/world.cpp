// The state of a run, independent of its communicators: which ranks have left, what each rank waits for, and the
// failure that ended the run.
#include "comm/local/threads/world.h"

#include <algorithm>
#include <utility>

#include "comm/error_messages.h"

namespace dtensor::local {
namespace {

// If there are more ranks than cores, ranks yield early; otherwise spinning longer pays off, since a peer arrives
// soon.
constexpr int kSpinsOversubscribed = 50;
constexpr int kSpinsDedicated = 2000;

}  // namespace

World::World(int size, RunOptions options, bool oversubscribed)
    : options_(options), spins_(oversubscribed ? kSpinsOversubscribed : kSpinsDedicated), ranks_(size) {}

void World::fail(std::string text) {
  std::lock_guard lock(mutex_);
  if (failed_.load(std::memory_order_relaxed)) return;
  failure_ = std::move(text);
  failed_.store(true);
}

std::string World::failure() const {
  std::lock_guard lock(mutex_);
  return failure_;
}

void World::throw_failure() const { throw CommError(failure()); }

// A cycle of ranks that wait for each other, through `rank`; empty if there is none.
std::vector<std::int64_t> World::find_wait_cycle(std::int64_t rank) const {
  std::vector<std::int64_t> from(ranks_.size(), -1), next{rank};
  while (!next.empty()) {
    const auto at = next.back();
    next.pop_back();
    if (ranks_[at].operation.empty()) continue;
    for (const auto other : ranks_[at].missing) {
      if (from[other] >= 0) continue;
      from[other] = at;
      next.push_back(other);
    }
  }
  std::vector<std::int64_t> cycle;
  if (from[rank] < 0) return cycle;
  for (auto at = from[rank]; at != rank; at = from[at]) cycle.push_back(at);
  return cycle.push_back(rank), cycle;
}

// Ranks that were missing at a check may have arrived since. But suppose that each rank of the cycle has checked after
// the last of them began to wait. Then all were waiting at that moment and none had arrived: a deadlock.
bool World::post_wait(std::int64_t rank, const std::string& operation,
                      c10::function_ref<std::vector<std::int64_t>()> missing) {
  std::lock_guard lock(mutex_);
  Rank& mine = ranks_[rank];
  mine.missing = missing();
  mine.last_check = ++checks_;
  if (mine.operation.empty()) mine.first_check = checks_;
  mine.operation = operation;
  const auto cycle = find_wait_cycle(rank);
  std::uint64_t all_waited = 0;
  for (const auto r : cycle) all_waited = std::max(all_waited, ranks_[r].first_check);
  return !cycle.empty() &&
         std::all_of(cycle.begin(), cycle.end(), [&](auto r) { return ranks_[r].last_check > all_waited; });
}

void World::end_wait(std::int64_t rank) {
  std::lock_guard lock(mutex_);
  ranks_[rank].operation.clear();
}

std::string World::failed_before(c10::ArrayRef<std::int64_t> ranks) const {
  std::vector<std::pair<std::int64_t, std::string>> errors;
  for (const auto rank : ranks) {
    const auto& record = ranks_[rank].record;
    errors.emplace_back(rank, record == nullptr ? "" : record->last_error());
  }
  return dtensor::failed_before(errors);
}

std::string World::recent(c10::ArrayRef<std::int64_t> ranks) const {
  constexpr std::size_t kShownRanks = 4;
  std::string out;
  for (const auto rank : ranks.slice(0, std::min(ranks.size(), kShownRanks))) {
    out += describe_recent_calls(rank, ranks_[rank].record.get());
  }
  return out;
}

std::string World::describe_wait(std::int64_t rank) const {
  const std::string who = "rank " + std::to_string(rank);
  if (left(rank)) return who + " has returned from its function";
  std::lock_guard lock(mutex_);
  const std::string& operation = ranks_[rank].operation;
  return operation.empty() ? who + " is in no collective" : who + " waits in " + operation;
}

}  // namespace dtensor::local
