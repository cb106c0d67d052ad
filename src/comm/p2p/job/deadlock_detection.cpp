// Detection of ranks that wait for each other, in a receive and a collective or in collectives of two communicators. A
// rank that has waited for a while reports its wait to the others, so that a deadlock is found long before the
// timeout.
//
// A wait is for headers, which are small and are sent when their sender arrives; a report follows all earlier headers
// of its sender. Or it is for a message to be received by a rank that has no such receive and cannot post one while it
// waits. So ranks on a stable cycle wait forever. The confirmation delay covers messages that overtake each other. A
// rank that was stopped after its report may find that the awaited message has arrived: so each rank must report again
// meanwhile.
#include <unistd.h>

#include <algorithm>
#include <sstream>

#include "comm/error_messages.h"
#include "comm/p2p/job/job.h"
#include "comm/p2p/job/termination.h"

namespace dtensor::p2p {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kCycleConfirmTime{500};  // how long a cycle must stay unchanged
constexpr std::chrono::milliseconds kRefreshInterval{100};   // between reports of a rank on a cycle that it still waits
// Number of new reports that each rank must send: a stopped rank may send one before it sees what arrived meanwhile.
constexpr std::uint64_t kMinRefreshes = 2;
// Time for other ranks to report that they received SIGTERM too. Open MPI sends SIGKILL a second after SIGTERM, so
// with a longer wait a loaded machine loses the messages of ranks.
constexpr std::chrono::milliseconds kTerminationAnswerTime{200};

}  // namespace

std::string Job::Wait::str() const {
  std::ostringstream out;
  out << number << ' ' << refreshes << ' ' << sent_tag << ' ' << missing.size();
  for (const auto rank : missing) out << ' ' << rank;
  out << ' ' << taking.size();
  for (const auto& [from, tag] : taking) out << ' ' << from << ' ' << tag;
  out << ' ' << operation;
  return out.str();
}

Job::Wait Job::Wait::read(const std::string& text) {
  Wait wait;
  std::istringstream in(text);
  std::size_t count = 0;
  in >> wait.number >> wait.refreshes >> wait.sent_tag >> count;
  for (std::int64_t rank = 0; count > 0 && in >> rank; --count) wait.missing.push_back(rank);
  in >> count;
  for (MessageKey key; count > 0 && in >> key.first >> key.second; --count) wait.taking.push_back(key);
  std::getline(in >> std::ws, wait.operation);
  return wait;
}

// A helper thread may wait while the rank continues, so it counts as one of several threads even before another waits.
// The main thread of the process does not count: with a language binding, the rank's function may run on another
// thread.
bool Job::several_threads() {
  const auto me = std::this_thread::get_id();
  const bool helper = me != thread_ && gettid() != getpid();
  if (first_waiting_thread_ == std::thread::id()) first_waiting_thread_ = me;
  return several_threads_ = several_threads_ || helper || first_waiting_thread_ != me;
}

bool Job::post_wait(const std::string& operation, const std::vector<std::int64_t>& missing, std::int64_t sent_tag) {
  const auto taking = receiving();
  const std::lock_guard lock(mutex_);
  if (several_threads()) return false;
  Wait& mine = peers_[rank_].wait;
  const bool fresh = mine.number == 0 || mine.missing != missing || mine.taking != taking;
  if (fresh) mine = {++waits_, 0, sent_tag, missing, taking, operation};
  const auto found = cycle();
  const bool again = !fresh && !found.empty() && Clock::now() - reported_at_ > kRefreshInterval;
  if (again) ++mine.refreshes;
  if (fresh || again) send_control(kWaits, mine.str()), reported_at_ = Clock::now();
  return is_confirmed(found);
}

bool Job::is_confirmed(const Cycle& found) {
  if (found != suspected_) {
    suspected_ = found;
    suspected_since_ = Clock::now();
    for (const auto& [rank, number] : found) peers_[rank].suspected_at = peers_[rank].wait.refreshes;
  }
  if (found.empty() || Clock::now() - suspected_since_ <= kCycleConfirmTime) return false;
  return std::all_of(found.begin(), found.end(), [&](const auto& waiting) {
    const Peer& peer = peers_[waiting.first];
    return peer.wait.refreshes >= peer.suspected_at + kMinRefreshes;
  });
}

void Job::end_wait() {
  const std::lock_guard lock(mutex_);
  (void)several_threads();
  Wait& mine = peers_[rank_].wait;
  if (mine.number == 0) return;
  mine = {};
  send_control(kWaits, mine.str());
}

bool Job::may_receive(std::int64_t from, std::int64_t to) const {
  const auto& taking = peers_[to].wait.taking;
  const MessageKey sent{from, peers_[from].wait.sent_tag};
  return sent.second >= 0 && std::find(taking.begin(), taking.end(), sent) != taking.end();
}

// A cycle through this rank; empty if there is none.
Job::Cycle Job::cycle() const {
  std::vector<std::int64_t> from(peers_.size(), -1), next{rank_};
  while (!next.empty()) {
    const auto at = next.back();
    next.pop_back();
    for (const auto other : peers_[at].wait.missing) {
      if (from[other] >= 0 || may_receive(at, other)) continue;
      from[other] = at;
      next.push_back(other);
    }
  }
  Cycle found;
  if (from[rank_] < 0) return found;
  for (auto at = from[rank_]; at != rank_; at = from[at]) found.emplace_back(at, peers_[at].wait.number);
  found.emplace_back(rank_, peers_[rank_].wait.number);
  return found;
}

std::string Job::describe_wait(std::int64_t rank) {
  const std::lock_guard lock(mutex_);
  const Wait& wait = peers_[rank].wait;
  const std::string who = "; rank " + std::to_string(rank);
  if (wait.number == 0) return left(rank) ? who + " has returned from its function" : "";
  return who + " waits in " + wait.operation + " for " + ranks_text(wait.missing);
}

std::string Job::ended_by_signal(const std::vector<std::int64_t>& missing) {
  {
    const std::lock_guard lock(mutex_);
    send_control(kTerminationRequested, "");
  }
  const auto silent = [&] {
    std::vector<std::int64_t> ranks;
    for (const auto rank : missing) {
      if (!peers_[rank].termination_requested) ranks.push_back(rank);
    }
    return ranks;
  };
  const auto deadline = Clock::now() + kTerminationAnswerTime;
  while (!silent().empty() && Clock::now() < deadline) {
    poll();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  const auto ranks = silent();
  if (ranks.empty()) return "ended by SIGTERM, as were the ranks it waits for: the run was interrupted; ";
  return "ended by SIGTERM: the launcher was interrupted or has lost a rank, and " + ranks_text(ranks) +
         (ranks.size() > 1 ? " do" : " does") + " not answer; ";
}

}  // namespace dtensor::p2p
