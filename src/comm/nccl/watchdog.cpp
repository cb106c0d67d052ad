// One thread a process looks at the oldest collective under way.
#include "comm/nccl/watchdog.h"

#include <cstdlib>
#include <thread>

#include "comm/launchers.h"
#include "comm/nccl/check.h"

namespace dtensor::nccl {

Event::Event() { check(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "cudaEventCreate"); }
Event::~Event() { cudaEventDestroy(event_); }

bool Event::passed() const {
  const cudaError_t state = cudaEventQuery(event_);
  if (state == cudaErrorNotReady) return false;
  check(state, "a collective on the GPU");
  return true;
}

Watchdog::Watchdog(int rank, std::chrono::milliseconds timeout) : rank_(rank), timeout_(timeout) {
  std::thread([this] { loop(); }).detach();  // lives as long as the process
}

void Watchdog::watch(std::shared_ptr<Event> event, ncclComm_t comm, std::string text) {
  std::lock_guard lock(mutex_);
  watched_.push_back({std::move(event), comm, std::move(text), std::chrono::steady_clock::now()});
  condition_.notify_one();
}

void Watchdog::forget(ncclComm_t comm) {
  std::lock_guard lock(mutex_);
  std::erase_if(watched_, [&](const Watched& w) { return w.comm == comm; });
}

std::string Watchdog::trouble() {
  std::lock_guard lock(mutex_);
  while (!watched_.empty()) {
    const Watched& oldest = watched_.front();
    ncclResult_t state = ncclSuccess;
    ncclCommGetAsyncError(oldest.comm, &state);
    if (state != ncclSuccess && state != ncclInProgress)
      return std::string(ncclGetErrorString(state)) + " in " + oldest.text;
    if (!oldest.event->passed()) {
      if (std::chrono::steady_clock::now() - oldest.since < timeout_) return "";
      return "timeout after " + std::to_string(timeout_.count()) + " ms: waits in " + oldest.text;
    }
    watched_.pop_front();
  }
  return "";
}

void Watchdog::loop() {
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      condition_.wait(lock, [&] { return !watched_.empty(); });
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    std::string text;
    try {
      text = trouble();
    } catch (const std::exception& e) {
      text = e.what();
    }
    if (text.empty()) continue;
    print_failure(rank_, text);
    std::_Exit(1);  // the launcher ends the others; their own watchdogs speak for them
  }
}

}  // namespace dtensor::nccl
