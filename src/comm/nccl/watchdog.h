// Watches calls on the GPU, for which no host thread waits. Ends the process if a call times out, closes communicators
// after their queued work has run, and fails this rank when another rank aborts.
#pragma once

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <set>
#include <shared_mutex>
#include <string>
#include <vector>

#include "comm/error_messages.h"
#include "dtensor/comm_backend.h"

namespace dtensor::nccl {

// Keeps destroyed events of one device for later calls.
class EventPool {
 public:
  ~EventPool();
  cudaEvent_t take();
  void give(cudaEvent_t event);

 private:
  std::mutex mutex_;
  std::vector<cudaEvent_t> free_;
};

// A CUDA event of a pool. Create it while the pool's device is current.
class Event {
 public:
  explicit Event(std::shared_ptr<EventPool> pool) : pool_(std::move(pool)), event_(pool_->take()) {}
  ~Event() { pool_->give(event_); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  cudaEvent_t get() const { return event_; }
  bool is_complete() const;  // throws CommError if the device failed

 private:
  std::shared_ptr<EventPool> pool_;
  cudaEvent_t event_;
};

// The members of a communicator, for messages.
struct GroupName {
  std::string label;
  std::vector<std::int64_t> ranks;
};

// A call on the GPU.
struct Operation {
  enum class State : std::uint8_t { waiting, enqueued, failed };

  Operation(const std::shared_ptr<EventPool>& events, CallDescription what, std::shared_ptr<const GroupName> members)
      : after(events), description(std::move(what)), group(std::move(members)) {}
  // Throws CommError if the device failed.
  bool is_complete() const { return state == State::failed || (state == State::enqueued && after.is_complete()); }
  std::string text() const;

  Event after;  // recorded after the call
  CallDescription description;
  std::shared_ptr<const GroupName> group;
  std::chrono::steady_clock::time_point since = std::chrono::steady_clock::now();
  std::atomic<ncclComm_t> comm{nullptr};  // set before `state`
  std::atomic<State> state{State::waiting};
};

class Watchdog {
 public:
  // `cpu` reports aborts of other ranks. Each error message ends with the recent calls from its record.
  Watchdog(Communicator cpu, std::chrono::milliseconds timeout);

  // Its thread frees it when nothing is pending. The last call.
  void release();

  // Asynchronous errors of open communicators end the process.
  void open(ncclComm_t comm);
  // Destroys the communicator when its operations have run, now or later, and then frees `with`.
  void close(ncclComm_t comm, std::shared_ptr<const void> with);

  // Hold the lock while calling NCCL: it prevents the abort of communicators. Throws CommError if the run has failed.
  std::shared_lock<std::shared_timed_mutex> enter();
  // Call it before the operation is enqueued, because NCCL blocks the host until it is connected to its peers.
  void watch(std::shared_ptr<const Operation> operation);

  // Aborts all communicators of this rank, so that pending operations end and throw `text` as a CommError.
  void fail(const std::string& text);
  void check();  // throws that error
  bool failed() const { return failed_; }
  // Throws the failure that another rank has reported, also where no operation is watched.
  void check_ranks();
  // Throws CommError: this rank waited for the timeout in `text`.
  [[noreturn]] void throw_timeout(const std::string& text) const;
  std::chrono::milliseconds timeout() const { return timeout_; }

 private:
  struct Closing {
    ncclComm_t comm;
    std::shared_ptr<const void> with;
  };
  bool loop();                 // whether the watchdog was released; else the process exits
  std::string find_failure();  // ends the process if not empty
  std::string find_timeout();
  std::vector<Closing> take_idle();
  std::string timeout_text(const std::string& text) const;
  std::string last() const;

  Communicator cpu_;
  std::chrono::milliseconds timeout_;
  std::shared_timed_mutex calls_;
  std::mutex mutex_;
  std::condition_variable condition_;
  std::deque<std::shared_ptr<const Operation>> watched_;  // oldest first
  std::vector<Closing> closing_;
  std::set<ncclComm_t> open_;
  std::string failure_;
  std::atomic<bool> failed_{false};
  bool released_ = false;
};

struct ReleaseWatchdog {
  void operator()(Watchdog* watchdog) const { watchdog->release(); }
};
using WatchdogPtr = std::unique_ptr<Watchdog, ReleaseWatchdog>;

}  // namespace dtensor::nccl
