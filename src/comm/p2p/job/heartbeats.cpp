// Heartbeats distinguish a rank that waits for its disk from one whose process was stopped or whose host is gone. They
// are sent only while ranks read or write files: otherwise a rank that sends them may still never arrive.
#include <algorithm>
#include <condition_variable>
#include <system_error>
#include <thread>

#include "comm/error_messages.h"
#include "comm/p2p/job/job.h"

namespace dtensor::p2p {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kPerTimeout = 4;                     // heartbeats in the time after which a rank counts as stopped
constexpr std::chrono::milliseconds kStall{1000};  // between two looks of a wait, at least, if this rank was stopped

}  // namespace

class Job::Heartbeats {
 public:
  explicit Heartbeats(Job& job) : job_(job), thread_([this](const std::stop_token& end) { run(end); }) {}

 private:
  void run(const std::stop_token& end) {
    std::mutex mutex;
    std::unique_lock lock(mutex);
    std::condition_variable_any ended;
    const auto interval = std::max(job_.options().timeout / kPerTimeout, std::chrono::milliseconds(1));
    while (!ended.wait_for(lock, end, interval, [&] { return end.stop_requested(); })) {
      try {
        const std::lock_guard sending(job_.mutex_);
        job_.send_control(kHeartbeat, "");
      } catch (const std::exception&) {  // of the transport; the next wait of this rank throws it, too
        return;
      }
    }
  }

  Job& job_;
  std::jthread thread_;  // last: it uses the other members, and ends first
};

std::shared_ptr<void> Job::send_heartbeats() {
  if (!transport_->sends_from_any_thread()) return std::make_shared<NoTimeout>();
  const std::lock_guard lock(mutex_);
  std::shared_ptr<void> open = heartbeats_.lock();
  if (open == nullptr) {
    try {
      open = std::make_shared<Heartbeats>(*this);
    } catch (const std::system_error&) {  // no thread: this rank counts as stopped if it is slower than the timeout
      open = std::make_shared<int>();
    }
    heartbeats_ = open;
  }
  return open;
}

// A rank that was stopped itself, or whose host was suspended, first has to read what arrived meanwhile.
std::vector<std::int64_t> Job::silent(std::vector<std::int64_t> awaited, Clock::time_point since) {
  const std::lock_guard lock(mutex_);
  const auto now = Clock::now();
  const bool expects = !heartbeats_.expired();
  if (now - looked_at_ > std::max<Clock::duration>(kStall, options_.timeout / 2)) resumed_at_ = now;
  looked_at_ = now;
  std::erase_if(awaited, [&](std::int64_t rank) {
    const auto heard = expects ? std::max({since, peers_[rank].heard_at, resumed_at_}) : since;
    return now - heard <= options_.timeout;
  });
  return awaited;
}

std::string Job::describe_silence(const std::vector<std::int64_t>& ranks) {
  const std::lock_guard lock(mutex_);
  const std::string text = "timeout after " + duration_text(options_.timeout);
  if (heartbeats_.expired()) return text;
  return text + " without a heartbeat of " + ranks_text(ranks) + " (a stopped process, a lost host?)";
}

}  // namespace dtensor::p2p
