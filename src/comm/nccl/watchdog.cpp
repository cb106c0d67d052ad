// One thread per rank polls the oldest pending collective.
#include "comm/nccl/watchdog.h"

#include <algorithm>
#include <cstdlib>
#include <thread>

#include "comm/error_messages.h"
#include "comm/launch/launchers.h"
#include "comm/nccl/error_checks.h"
#include "comm/waiting/no_timeout.h"

namespace dtensor::nccl {
namespace {

constexpr std::chrono::milliseconds kPollInterval{50};
constexpr std::chrono::seconds kCallEnds{5};  // a longer NCCL call waits for a peer

// CUDA must not be called during process exit.
std::mutex exit_mutex;
bool exiting = false;

void stop_at_exit() {
  [[maybe_unused]] static const int once = std::atexit([] {
    std::lock_guard lock(exit_mutex);
    exiting = true;
  });
}

[[noreturn]] void end_process(int rank, const std::string& text) {
  print_failure(rank, text);
  flush_standard_output();
  std::_Exit(1);  // the launcher ends the other processes; their own watchdogs report
}

bool is_complete(const Event& event) {
  try {
    return event.is_complete();
  } catch (const CommError&) {  // the device failed, so nothing is running
    return true;
  }
}

}  // namespace

Event::Event() { check(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "cudaEventCreate"); }
Event::~Event() { cudaEventDestroy(event_); }

bool Event::is_complete() const {
  const cudaError_t state = cudaEventQuery(event_);
  if (state == cudaErrorNotReady) return false;
  nccl::check(state, "a collective on the GPU");
  return true;
}

Watchdog::Watchdog(Communicator cpu, std::chrono::milliseconds timeout)
    : cpu_(std::move(cpu)), timeout_(clamp_timeout(timeout)) {
  stop_at_exit();
  std::thread([this] { loop(); }).detach();  // lives as long as the process
}

void Watchdog::open(ncclComm_t comm) {
  std::lock_guard lock(mutex_);
  open_.insert(comm);
}

void Watchdog::close(ncclComm_t comm) {
  std::lock_guard lock(mutex_);
  if (open_.count(comm) == 0) return;  // aborted after a failure
  const bool busy = std::any_of(watched_.begin(), watched_.end(),
                                [&](const Watched& w) { return w.comm == comm && !is_complete(*w.event); });
  if (busy) {
    watched_.push_back({nullptr, comm, "", std::chrono::steady_clock::now()});
    condition_.notify_one();
    return;
  }
  std::erase_if(watched_, [&](const Watched& w) { return w.comm == comm; });
  open_.erase(comm);
  ncclCommAbort(comm);
}

std::shared_lock<std::shared_timed_mutex> Watchdog::enter() {
  std::shared_lock lock(calls_);
  check();
  return lock;
}

void Watchdog::check() {
  std::lock_guard lock(mutex_);
  if (!failure_.empty()) throw CommError(failure_);
}

void Watchdog::watch(std::shared_ptr<Event> event, ncclComm_t comm, std::string text) {
  std::lock_guard lock(mutex_);
  if (open_.count(comm) == 0) return;  // aborted after a failure, which wait() throws
  watched_.push_back({std::move(event), comm, std::move(text), std::chrono::steady_clock::now()});
  condition_.notify_one();
}

void Watchdog::fail(const std::string& text) {
  {
    std::lock_guard lock(mutex_);
    if (!failure_.empty()) return;
    failure_ = text + last();  // prevents further calls
  }
  std::unique_lock calls(calls_, kCallEnds);
  if (!calls.owns_lock()) end_process(cpu_.rank(), text + last());
  std::lock_guard lock(mutex_);
  for (ncclComm_t comm : open_) ncclCommAbort(comm);
  open_.clear();
  watched_.clear();
}

std::string Watchdog::last() const { return describe_recent_calls(cpu_.rank(), &backend_of(cpu_)->record()); }

std::string Watchdog::find_failure() {
  std::lock_guard lock(mutex_);
  while (!watched_.empty()) {
    const Watched& oldest = watched_.front();
    if (oldest.event == nullptr) {
      open_.erase(oldest.comm);
      ncclCommAbort(oldest.comm);
      watched_.pop_front();
      continue;
    }
    ncclResult_t state = ncclSuccess;
    ncclCommGetAsyncError(oldest.comm, &state);
    if (state != ncclSuccess && state != ncclInProgress)
      return std::string(ncclGetErrorString(state)) + " in " + oldest.text;
    if (!oldest.event->is_complete()) {
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
    std::this_thread::sleep_for(kPollInterval);
    std::lock_guard working(exit_mutex);
    if (exiting) return;
    std::string text;
    try {
      if (const std::string reported = backend_of(cpu_)->failure(); !reported.empty()) {
        fail(reported);
      } else {
        text = find_failure();
      }
    } catch (const std::exception& e) {
      text = e.what();
    }
    if (!text.empty()) end_process(cpu_.rank(), text + last());
  }
}

}  // namespace dtensor::nccl
