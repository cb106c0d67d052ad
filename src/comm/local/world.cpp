// The state of a run that outlives any one communicator: who has left, who waits where, and the failure that ended it.
#include "comm/local/world.h"

#include <utility>

namespace dtensor::local {
namespace {

// Ranks that outnumber the cores must give way at once; others are worth a longer look, as a peer is about to come.
constexpr int kSpinsCrowded = 50;
constexpr int kSpinsFree = 2000;

}  // namespace

World::World(int size, RunOptions options, bool crowded)
    : options_(options), spins_(crowded ? kSpinsCrowded : kSpinsFree), ranks_(size) {}

void World::fail(std::string text) {
  std::lock_guard lock(mutex_);
  if (failed_.load(std::memory_order_relaxed)) return;
  failure_ = std::move(text);
  failed_.store(true, std::memory_order_release);
}

std::string World::failure() const {
  std::lock_guard lock(mutex_);
  return failure_;
}

void World::throw_failure() const { throw CommError(failure()); }

void World::set_place(std::int64_t rank, std::string text) {
  std::lock_guard lock(mutex_);
  ranks_[rank].place = std::move(text);
}

std::string World::whereabouts(std::int64_t rank) const {
  const std::string who = "rank " + std::to_string(rank);
  if (left(rank)) return who + " has returned from its function";
  std::lock_guard lock(mutex_);
  const std::string& place = ranks_[rank].place;
  return place.empty() ? who + " is in no collective" : who + " waits in " + place;
}

}  // namespace dtensor::local
