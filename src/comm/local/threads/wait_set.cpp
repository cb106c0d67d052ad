// The slow path of a wait: sleeps in slices, so that each sleeper itself notices a failure, a rank that has left, a
// deadlock and the timeout. Sleepers need no registry.
#include "comm/local/threads/wait_set.h"

#include <thread>

#include "comm/error_messages.h"
#include "comm/waiting/gil_release.h"
#include "comm/waiting/no_timeout.h"

namespace dtensor::local {
namespace {

constexpr int kYields = 100;
constexpr std::chrono::milliseconds kSlice{10};

class SleeperCount {
 public:
  explicit SleeperCount(std::atomic<int>& count) : count_(count) { ++count_; }
  ~SleeperCount() { --count_; }
  SleeperCount(const SleeperCount&) = delete;
  SleeperCount& operator=(const SleeperCount&) = delete;

 private:
  std::atomic<int>& count_;
};

// Publishes what this rank waits for while it waits, for the reports of other ranks.
class PostedWait {
 public:
  PostedWait(World& world, std::int64_t rank) : world_(world), rank_(rank) {}
  ~PostedWait() {
    if (posted_) world_.end_wait(rank_);
  }
  PostedWait(const PostedWait&) = delete;
  PostedWait& operator=(const PostedWait&) = delete;

  // Returns true if the wait can never end. Helper threads of a rank do not count, since the rank's own thread
  // continues.
  bool post(const WaitDescription& text) {
    if (RankRecord::current() == nullptr) return false;
    if (!posted_) place_ = text.operation();
    posted_ = true;
    return world_.post_wait(rank_, place_, text.missing);
  }

 private:
  World& world_;
  std::int64_t rank_;
  std::string place_;
  bool posted_ = false;
};

}  // namespace

void WaitSet::block(const WaitDescription& text, c10::function_ref<bool()> ready) {
  const GilRelease others_may_run;
  if (!yield_thread(ready)) sleep_until_woken(text, ready);
}

bool WaitSet::yield_thread(c10::function_ref<bool()> ready) const {
  for (int i = 0; i < kYields; ++i) {
    if (ready()) return true;
    if (world_.failed()) return false;
    std::this_thread::yield();
  }
  return false;
}

void WaitSet::sleep_until_woken(const WaitDescription& text, c10::function_ref<bool()> ready) {
  const auto deadline = std::chrono::steady_clock::now() + world_.timeout();
  PostedWait operation(world_, text.rank);
  SleeperCount count(sleepers_);
  std::unique_lock lock(mutex_);
  while (!ready()) {
    check(text, ready);
    const auto left = deadline - std::chrono::steady_clock::now();
    const bool late = left <= left.zero();
    if (late && !timeouts_suspended()) {
      fail("timeout after " + duration_text(world_.timeout()), text);
      continue;
    }
    const auto slice = late ? std::chrono::steady_clock::duration(kSlice)
                            : std::min<std::chrono::steady_clock::duration>(left, kSlice);
    const bool waited = condition_.wait_for(lock, slice) == std::cv_status::timeout;
    if (waited && operation.post(text)) fail("ranks wait for each other", text);
  }
}

void WaitSet::check(const WaitDescription& text, c10::function_ref<bool()> ready) {
  if (world_.failed())
    throw CommError(world_.failure() + " [rank " + std::to_string(text.rank) + " was in " + text.operation() + "]");
  for (auto rank : text.missing()) {
    if (!world_.left(rank) || ready()) continue;
    fail("rank " + std::to_string(rank) + " returned from its function while others wait for it", text);
  }
}

void WaitSet::fail(const std::string& what, const WaitDescription& text) const {
  const auto missing = text.missing();
  std::string out =
      what + ": rank " + std::to_string(text.rank) + " waits in " + text.operation() + " for " + ranks_text(missing);
  for (auto rank : missing) out += "; " + world_.describe_wait(rank);
  std::vector<std::int64_t> concerned{text.rank};
  concerned.insert(concerned.end(), missing.begin(), missing.end());
  world_.fail(world_.failed_before(concerned) + out + world_.recent(concerned));
}

}  // namespace dtensor::local
