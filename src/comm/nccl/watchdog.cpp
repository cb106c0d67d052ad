// One thread per rank polls the pending operations.
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
constexpr std::chrono::seconds kDestroyEnds{2};

// CUDA must not be called during process exit.
std::mutex exit_mutex;
auto& destroyed = *new std::condition_variable;  // never destroyed: threads may outlive static objects
bool exiting = false;
int destroying = 0;  // communicators

void stop_at_exit() {
  [[maybe_unused]] static const int once = std::atexit([] {
    std::unique_lock lock(exit_mutex);
    exiting = true;
    destroyed.wait_for(lock, kDestroyEnds, [] { return destroying == 0; });
  });
}

[[noreturn]] void end_process(int rank, const std::string& text) {
  print_failure(rank, text);
  flush_standard_output();
  std::_Exit(1);  // the launcher ends the other processes; their own watchdogs report
}

// The communicator's operations have run. Its end may wait for that of its peers on this host, so a thread of its own
// waits. ncclCommAbort would not, but drops what peers still read. Requires exit_mutex.
void destroy(ncclComm_t comm, std::shared_ptr<const void> with) {
  ++destroying;
  std::thread([comm, with = std::move(with)] {
    ncclCommFinalize(comm);
    ncclCommDestroy(comm);
    std::lock_guard lock(exit_mutex);
    if (--destroying == 0) destroyed.notify_all();
  }).detach();
}

}  // namespace

EventPool::~EventPool() {
  for (cudaEvent_t event : free_) cudaEventDestroy(event);
}

cudaEvent_t EventPool::take() {
  {
    std::lock_guard lock(mutex_);
    if (!free_.empty()) {
      cudaEvent_t event = free_.back();
      free_.pop_back();
      return event;
    }
  }
  cudaEvent_t event = nullptr;
  check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreate");
  return event;
}

void EventPool::give(cudaEvent_t event) {
  std::lock_guard lock(mutex_);
  free_.push_back(event);
}

bool Event::is_complete() const {
  const cudaError_t state = cudaEventQuery(event_);
  if (state == cudaErrorNotReady) return false;
  nccl::check(state, "a collective on the GPU");
  return true;
}

std::string Operation::text() const {
  const auto& label = description.call().label;
  return description.str() + " on " + describe_group(label ? *label : group->label, group->ranks);
}

Watchdog::Watchdog(Communicator cpu, std::chrono::milliseconds timeout)
    : cpu_(std::move(cpu)), timeout_(clamp_timeout(timeout)) {
  stop_at_exit();
  std::thread([this] {
    if (loop()) delete this;
  }).detach();
}

void Watchdog::release() {
  std::lock_guard lock(mutex_);
  released_ = true;
  condition_.notify_one();
}

void Watchdog::open(ncclComm_t comm) {
  std::lock_guard lock(mutex_);
  open_.insert(comm);
}

void Watchdog::close(ncclComm_t comm, std::shared_ptr<const void> with) {
  std::lock_guard lock(mutex_);
  if (open_.count(comm) == 0) return;  // aborted after a failure
  closing_.push_back({comm, std::move(with)});
  condition_.notify_one();
}

std::shared_lock<std::shared_timed_mutex> Watchdog::enter() {
  std::shared_lock lock(calls_);
  check();
  return lock;
}

void Watchdog::check() {
  if (!failed_) return;
  std::lock_guard lock(mutex_);
  throw CommError(failure_);
}

void Watchdog::check_ranks() {
  check();
  if (const std::string reported = backend_of(cpu_)->failure(); !reported.empty()) throw CommError(reported + last());
}

void Watchdog::throw_timeout(const std::string& text) const { throw CommError(timeout_text(text) + last()); }

void Watchdog::watch(std::shared_ptr<const Operation> operation) {
  std::lock_guard lock(mutex_);
  if (!failure_.empty()) return;  // wait() throws it
  watched_.push_back(std::move(operation));
  if (watched_.size() == 1) condition_.notify_one();
}

void Watchdog::fail(const std::string& text) {
  {
    std::lock_guard lock(mutex_);
    if (!failure_.empty()) return;
    failure_ = text + last();  // prevents further calls
    failed_ = true;
  }
  std::unique_lock calls(calls_, kCallEnds);
  if (!calls.owns_lock()) end_process(cpu_.rank(), text + last());
  std::lock_guard lock(mutex_);
  for (ncclComm_t comm : open_) ncclCommAbort(comm);
  open_.clear();
  closing_.clear();
  watched_.clear();
}

std::string Watchdog::last() const { return describe_recent_calls(cpu_.rank(), &backend_of(cpu_)->record()); }

std::string Watchdog::timeout_text(const std::string& text) const {
  return "timeout after " + std::to_string(timeout_.count()) + " ms: waits in " + text;
}

std::string Watchdog::find_failure() {
  std::lock_guard lock(mutex_);
  for (ncclComm_t comm : open_) {
    ncclResult_t state = ncclSuccess;
    ncclCommGetAsyncError(comm, &state);
    if (state == ncclSuccess || state == ncclInProgress) continue;
    const auto of = std::find_if(watched_.begin(), watched_.end(), [&](const auto& o) { return o->comm == comm; });
    return std::string(ncclGetErrorString(state)) + " in " + (of == watched_.end() ? "NCCL" : (*of)->text());
  }
  return find_timeout();
}

// Forgets complete operations. Those of one communicator complete in order.
std::string Watchdog::find_timeout() {
  const auto now = std::chrono::steady_clock::now();
  std::set<ncclComm_t> pending;
  std::string late;
  std::erase_if(watched_, [&](const std::shared_ptr<const Operation>& operation) {
    const ncclComm_t comm = operation->comm;
    const bool queued = comm != nullptr && pending.count(comm) != 0;
    if (!queued && operation->is_complete()) return true;
    pending.insert(comm);
    if (late.empty() && now - operation->since >= timeout_) late = timeout_text(operation->text());
    return false;
  });
  return late;
}

std::vector<Watchdog::Closing> Watchdog::take_idle() {
  std::lock_guard lock(mutex_);
  std::vector<Closing> idle;
  std::erase_if(closing_, [&](Closing& closing) {
    const auto of_it = [&](const auto& operation) { return operation->comm == closing.comm; };
    if (std::any_of(watched_.begin(), watched_.end(), of_it)) return false;
    open_.erase(closing.comm);
    idle.push_back(std::move(closing));
    return true;
  });
  return idle;
}

bool Watchdog::loop() {
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      const auto pending = [&] { return !watched_.empty() || !closing_.empty(); };
      condition_.wait(lock, [&] { return released_ || pending(); });
      if (!pending()) return true;
    }
    std::this_thread::sleep_for(kPollInterval);
    std::lock_guard working(exit_mutex);
    if (exiting) return false;
    std::string text;
    try {
      if (const std::string reported = backend_of(cpu_)->failure(); !reported.empty()) {
        fail(reported);
      } else {
        text = find_failure();
        for (Closing& closing : take_idle()) destroy(closing.comm, std::move(closing.with));
      }
    } catch (const std::exception& e) {
      text = e.what();
    }
    if (!text.empty()) end_process(cpu_.rank(), text + last());
  }
}

}  // namespace dtensor::nccl
