// Who waits for whom. A rank that has waited for a while tells the others, so that ranks that wait for each other, in a
// receive and a collective or in collectives of two communicators, are found long before the timeout.
//
// A wait is for headers, which are small and on their way as soon as their sender has come; what a rank tells of itself
// comes after all headers that it has sent. Or it is for a message to be taken by a rank that receives nothing from
// this one, and cannot begin to while it waits itself. So ranks on a cycle that stays as it is are waiting for good;
// the delay before it is believed is for messages that overtake each other. A rank that was stopped after it told of
// its wait may find that what it waited for has come: each must have told again meanwhile that it still waits.
#include <unistd.h>

#include <algorithm>
#include <sstream>

#include "comm/error_messages.h"
#include "comm/p2p/job/job.h"
#include "comm/p2p/job/termination.h"

namespace dtensor::p2p {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kCycleConfirmTime{500};  // for which a cycle must stay as it is
constexpr std::chrono::milliseconds kRefreshInterval{100};   // after which a rank on a cycle tells that it still waits
// So often must each have told: one that was stopped may do so once before it looks at what came meanwhile.
constexpr std::uint64_t kMinRefreshes = 2;
// For others to say that they were asked to end, too. Open MPI kills a second after it asked, so on a loaded machine a
// longer wait loses the lines of ranks that had something to say.
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

// A helper may wait while the rank goes on, so it is one of several though no other has waited yet. The process's own
// thread is none: a language's binding has the rank's function held open on another.
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

// Round through this rank; empty where there is none.
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
  if (ranks.empty()) return "ended by SIGTERM, as those it waits for were: the run was interrupted; ";
  return "ended by SIGTERM: the launcher was interrupted or has lost a rank, and " + ranks_text(ranks) +
         (ranks.size() > 1 ? " do" : " does") + " not answer; ";
}

}  // namespace dtensor::p2p
