// Posts messages and waits for them by testing, so that a wait can also hear of failures, give way to other processes
// and run into its timeout. A transport moves messages only while it is being called.
#include "comm/pairwise/exchange.h"

#include <algorithm>
#include <thread>

#include "comm/describe.h"
#include "comm/no_timeout.h"
#include "comm/pairwise/termination.h"
#include "comm/released_lock.h"

namespace dtensor::pairwise {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kWatchEvery = 64;                     // tests between two looks at the side channel
constexpr std::chrono::milliseconds kTelling{200};  // after which a wait is told to the others
constexpr std::chrono::milliseconds kLeaving{300};  // for data of a rank that has left to arrive

}  // namespace

Exchange::~Exchange() {
  if (done_) return;
  static auto* abandoned = new std::vector<Kept>;  // the transport may still write there
  static std::mutex mutex;
  std::lock_guard lock(mutex);
  abandoned->push_back(std::move(kept_));
}

std::string Exchange::report(c10::function_ref<std::string()> place) const {
  const auto ranks = batch_->missing();
  std::string out = "rank " + std::to_string(job_.rank()) + " waits in " + place() + " for " + ranks_text(ranks);
  for (const auto rank : ranks) out += job_.whereabouts(rank);
  return out;
}

void Exchange::fail(const std::string& what, c10::function_ref<std::string()> place) {
  job_.fail(what + ": " + report(place));
  job_.throw_failure(place());
}

void Exchange::watch(c10::function_ref<std::string()> place, Clock::time_point begin, For what, std::int64_t sent_tag) {
  job_.poll();
  if (job_.failed()) job_.throw_failure(place());
  if (TerminationWatch::requested())
    throw CommError(job_.ended_by_signal(batch_->missing()) + report(place) + job_.last());
  const auto now = Clock::now();
  const bool late = now - begin > job_.options().timeout && !timeouts_suspended();
  watch_leavers(place, now, late);
  if (late) fail("timeout after " + duration_text(job_.options().timeout), place);
  const bool told = what != For::data && now - begin > kTelling && !timeouts_suspended();
  if (told && job_.post_wait(place(), batch_->missing(), sent_tag)) fail("ranks wait for each other", place);
}

// What a rank sent before it left may still be on its way, but not when time is up: then that it left is the reason.
void Exchange::watch_leavers(c10::function_ref<std::string()> place, Clock::time_point now, bool late) {
  for (auto rank : batch_->missing()) {
    if (!job_.left(rank)) continue;
    if (noticed_leaving_ == Clock::time_point{}) noticed_leaving_ = now;
    if (!late && now - noticed_leaving_ < kLeaving) continue;
    fail("rank " + std::to_string(rank) + " returned from its function while others wait for it", place);
  }
}

bool Exchange::is_hopeless(c10::function_ref<std::string()> place) {
  job_.poll();
  try {
    if (!job_.failed()) watch_leavers(place, Clock::now(), false);
  } catch (const CommError&) {  // the job knows of it
  }
  return job_.failed();
}

void Exchange::wait(c10::function_ref<std::string()> place, For what, std::int64_t sent_tag) {
  if (test()) return;
  const ReleasedLock others_may_run;
  const TerminationWatch termination;
  Clock::time_point begin{};
  for (int round = 1; !test(); ++round) {
    const bool look = round % kWatchEvery == 0;
    const auto now = look ? Clock::now() : begin;
    if (look && begin == Clock::time_point{}) begin = now;
    job_.progress_receives();
    if (look) watch(place, begin, what, sent_tag);
    job_.transport().pause(now - begin, job_.crowded());
  }
  if (what != For::data && begin != Clock::time_point{}) job_.end_wait();
}

}  // namespace dtensor::pairwise
