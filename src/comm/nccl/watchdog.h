// Ends the process when a collective does not finish on the GPU in time: nothing on the host waits for it.
#pragma once

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <string>

namespace dtensor::nccl {

// An event that is destroyed with its last owner.
class Event {
 public:
  Event();
  ~Event();
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  cudaEvent_t get() const { return event_; }
  bool passed() const;  // throws CommError where the device failed

 private:
  cudaEvent_t event_ = nullptr;
};

class Watchdog {
 public:
  Watchdog(int rank, std::chrono::milliseconds timeout);

  // `text`: what this rank waits in. `comm` is asked for errors meanwhile.
  void watch(std::shared_ptr<Event> event, ncclComm_t comm, std::string text);
  void forget(ncclComm_t comm);  // before it is destroyed

 private:
  struct Watched {
    std::shared_ptr<Event> event;
    ncclComm_t comm;
    std::string text;
    std::chrono::steady_clock::time_point since;
  };
  void loop();
  std::string trouble();  // empty: none

  int rank_;
  std::chrono::milliseconds timeout_;
  std::mutex mutex_;
  std::condition_variable condition_;
  std::deque<Watched> watched_;
};

}  // namespace dtensor::nccl
