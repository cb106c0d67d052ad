// Watches collectives on the GPU, for which no host thread waits. Ends the process if a collective times out, aborts
// closed communicators after their queued work has run, and fails this rank when another rank aborts.
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

// A CUDA event, destroyed with its last owner.
class Event {
 public:
  Event();
  ~Event();
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  cudaEvent_t get() const { return event_; }
  bool is_complete() const;  // throws CommError if the device failed

 private:
  cudaEvent_t event_ = nullptr;
};

class Watchdog {
 public:
  // `cpu` reports aborts of other ranks. Each error message ends with the recent calls from its record.
  Watchdog(Communicator cpu, std::chrono::milliseconds timeout);

  void open(ncclComm_t comm);
  // Aborts the communicator when its queued work has run, now or later. Unlike ncclCommDestroy, ncclCommAbort never
  // waits for peers.
  void close(ncclComm_t comm);

  // Hold the lock while calling NCCL: it prevents the abort of communicators. Throws CommError if the run has failed.
  std::shared_lock<std::shared_timed_mutex> enter();
  // `text` describes the operation. Errors of `comm` are polled until it completes.
  void watch(std::shared_ptr<Event> event, ncclComm_t comm, std::string text);

  // Aborts all communicators of this rank, so that pending operations end and throw `text` as a CommError.
  void fail(const std::string& text);
  void check();  // throws that error

 private:
  struct Watched {
    std::shared_ptr<Event> event;  // null: close the communicator
    ncclComm_t comm;
    std::string text;
    std::chrono::steady_clock::time_point since;
  };
  void loop();
  std::string find_failure();  // ends the process if not empty
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
