// Posts messages and waits for them by polling, so that a wait can also detect failures, yield to other processes and
// time out. A transport moves messages only while it is being called.
#include "comm/p2p/pending_messages.h"

#include <algorithm>
#include <thread>

#include "comm/error_messages.h"
#include "comm/p2p/job/termination.h"
#include "comm/waiting/gil_release.h"
#include "comm/waiting/no_timeout.h"

namespace dtensor::p2p {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kCheckInterval = 64;                         // tests between two polls of the side channel
constexpr std::chrono::milliseconds kReportInterval{200};  // after which a wait is reported to the other ranks
constexpr std::chrono::milliseconds kExitGrace{300};       // for data of a rank that has left to arrive

}  // namespace

MessageBatch::~MessageBatch() {
  if (done_) return;
  static auto* abandoned = new std::vector<Kept>;  // the transport may still write there
  static std::mutex mutex;
  std::lock_guard lock(mutex);
  abandoned->push_back(std::move(kept_));
}

std::string MessageBatch::report(c10::function_ref<std::string()> operation) const {
  const auto ranks = batch_->missing();
  std::string out = "rank " + std::to_string(job_.rank()) + " waits in " + operation() + " for " + ranks_text(ranks);
  for (const auto rank : ranks) out += job_.describe_wait(rank);
  return out;
}

void MessageBatch::fail(const std::string& what, c10::function_ref<std::string()> operation) {
  job_.fail(what + ": " + report(operation));
  job_.throw_failure(operation());
}

void MessageBatch::watch(c10::function_ref<std::string()> operation, Clock::time_point begin, WaitReason what,
                         std::int64_t sent_tag) {
  job_.poll();
  if (job_.failed()) job_.throw_failure(operation());
  if (TerminationWatch::requested())
    throw CommError(job_.ended_by_signal(batch_->missing()) + report(operation) + job_.last());
  const auto now = Clock::now();
  const auto silent = job_.silent(batch_->missing(), begin);
  const bool late = !silent.empty() && !timeouts_suspended();
  check_exited_peers(operation, now, late);
  if (late) fail(job_.describe_silence(silent), operation);
  const bool reported = what != WaitReason::data && now - begin > kReportInterval && !timeouts_suspended();
  if (reported && job_.post_wait(operation(), batch_->missing(), sent_tag))
    fail("ranks wait for each other", operation);
}

// Data sent by a rank before it left or failed may still arrive. After a timeout, its leaving is the reported reason.
void MessageBatch::check_exited_peers(c10::function_ref<std::string()> operation, Clock::time_point now, bool late) {
  for (auto rank : batch_->missing()) {
    const std::string absence = job_.absence(rank);
    if (absence.empty()) continue;
    if (exit_noticed_at_ == Clock::time_point{}) exit_noticed_at_ = now;
    if (!late && now - exit_noticed_at_ < kExitGrace) continue;
    fail(absence, operation);
  }
}

bool MessageBatch::would_throw(c10::function_ref<std::string()> operation) {
  job_.poll();
  try {
    if (!job_.failed()) check_exited_peers(operation, Clock::now(), false);
  } catch (const CommError&) {  // recorded in the job
  }
  return job_.failed();
}

void MessageBatch::wait(c10::function_ref<std::string()> operation, WaitReason what, std::int64_t sent_tag) {
  if (test()) return;
  const GilRelease others_may_run;
  const TerminationWatch termination;
  Clock::time_point begin{};
  for (int round = 1; !test(); ++round) {
    const bool look = round % kCheckInterval == 0;
    const auto now = look ? Clock::now() : begin;
    if (look && begin == Clock::time_point{}) begin = now;
    job_.progress_receives();
    if (look) watch(operation, begin, what, sent_tag);
    job_.transport().pause(now - begin, job_.oversubscribed());
  }
  if (what != WaitReason::data && begin != Clock::time_point{}) job_.end_wait();
}

}  // namespace dtensor::p2p
