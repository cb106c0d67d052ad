// Watches what runs on the GPU, where no thread of the host waits: ends the process when a collective does not finish
// in time, closes communicators once what is queued on them has run, and wakes this rank when another one aborts.
#pragma once

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <set>
#include <shared_mutex>
#include <string>

#include "dtensor/comm_backend.h"

namespace dtensor::nccl {

// An event that is destroyed with its last owner.
class Event {
 public:
  Event();
  ~Event();
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  cudaEvent_t get() const { return event_; }
  bool is_complete() const;  // throws CommError where the device failed

 private:
  cudaEvent_t event_ = nullptr;
};

class Watchdog {
 public:
  // `cpu` tells when another rank aborts; every error ends with what its record says that this rank did last.
  Watchdog(Communicator cpu, std::chrono::milliseconds timeout);

  void open(ncclComm_t comm);
  // Aborts the communicator (which, unlike ncclCommDestroy, never waits for peers) as soon as what is queued on it has
  // run: at once or later.
  void close(ncclComm_t comm);

  // To be held while NCCL is called: no communicator goes meanwhile. Throws CommError once the run has failed.
  std::shared_lock<std::shared_timed_mutex> enter();
  // `text`: what this rank waits in. `comm` is asked for errors meanwhile.
  void watch(std::shared_ptr<Event> event, ncclComm_t comm, std::string text);

  // Ends all communicators of this rank, so that what waits for them goes on, to meet `text` as a CommError.
  void fail(const std::string& text);
  void check();  // throws that error

 private:
  struct Watched {
    std::shared_ptr<Event> event;  // null: the communicator is to be closed
    ncclComm_t comm;
    std::string text;
    std::chrono::steady_clock::time_point since;
  };
  void loop();
  std::string find_failure();  // that ends the process; empty: none
  std::string last() const;

  Communicator cpu_;
  std::chrono::milliseconds timeout_;
  std::shared_timed_mutex calls_;
  std::mutex mutex_;
  std::condition_variable condition_;
  std::deque<Watched> watched_;  // oldest first
  std::set<ncclComm_t> open_;
  std::string failure_;
};

}  // namespace dtensor::nccl
