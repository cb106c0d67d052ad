// Devices whose streams are queues. Event records, waits for events, NCCL operations and asynchronous copies are
// queued; a step completes one queue head that can run, chosen by a seeded generator. Kernels run on the host when
// their stream is empty. One lock protects everything; functions require it unless stated otherwise.
#pragma once

#include <c10/util/FunctionRef.h>
#include <cuda_runtime_api.h>

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <vector>

#include "fake_cuda/device/clock.h"
#include "fake_cuda/device/ranks.h"

namespace dtensor::test::fake_cuda {

inline constexpr int kDevices = 8;

struct Launch;

// One recording of an event.
struct Record {
  bool done = false;
  CUstream_st* stream = nullptr;
  Clock clock = {};  // what happens before it
};

struct Item {
  enum class Kind { record, wait, launch, copy } kind;
  std::shared_ptr<Record> record = {};
  std::shared_ptr<Launch> launch = {};
  std::function<void()> copy = {};  // between the device and pinned memory; runs with the lock
};

// The state of a wait or a query.
enum class Outcome { done, pending, failed };

class Simulator {
 public:
  using Lock = std::unique_lock<std::mutex>;

  static Simulator& instance();  // never destroyed

  Lock lock() { return Lock(mutex_); }  // does not require the lock

  CUstream_st& stream(int device, int index) { return *devices_[static_cast<std::size_t>(device)].streams.at(index); }
  std::size_t streams(int device) const { return devices_[static_cast<std::size_t>(device)].streams.size(); }
  CUstream_st& new_stream(int device);
  // new_stream() may return it again when its queue is empty.
  void release_stream(const CUstream_st& stream);
  CUstream_st& pool_stream(int device, bool high_priority);
  // What the host of this device knows to be complete.
  Clock& host(int device) { return devices_[static_cast<std::size_t>(device)].host; }

  void push(CUstream_st& stream, Item item);
  // Counts an operation of the stream: its clock then is that of the operation.
  std::uint64_t start_operation(CUstream_st& stream);
  // After a change that others may wait for. Ranks are idle again when they have seen it.
  void note_activity();
  // Blocks this thread until `done`, and completes steps meanwhile.
  Outcome wait_until(Lock& lock, const std::string& what, c10::function_ref<bool()> done);
  // Completes a random number of steps, then asks `done`.
  Outcome poll(const std::string& what, c10::function_ref<bool()> done);
  Outcome drain(Lock& lock, CUstream_st& stream, const std::string& what);
  // True with probability 1 / n.
  bool one_in(std::uint64_t n) { return random_() % n == 0; }
  std::uint64_t random() { return random_(); }

  // Ends the run: waits of all ranks fail with this text.
  void fail(const std::string& text);
  const char* failure() const { return failure_.empty() ? "" : failure_.back().c_str(); }
  bool failed() const { return failed_; }
  const Schedule& schedule() const { return schedule_; }
  // Notes an error that does not end the run.
  void report(const std::string& text);

  // A device runs a limited number of NCCL operations at a time. Whether it can take another one, which it starts.
  bool start_launch(int device);
  void end_launch(int device) { --devices_[static_cast<std::size_t>(device)].running; }

  // Start and end of a run of ranks; these take the lock. `end` completes what can run and returns the errors.
  void begin(const Schedule& schedule, int ranks);
  std::vector<std::string> end();

  // Marks the calling thread as the main thread of a rank.
  class RankScope {
   public:
    explicit RankScope(int rank);
    ~RankScope();
    RankScope(const RankScope&) = delete;
    RankScope& operator=(const RankScope&) = delete;
  };

 private:
  struct Device {
    Clock host;
    std::vector<std::unique_ptr<CUstream_st>> streams;
    std::vector<int> released;  // indices of destroyed streams
    std::vector<int> pool[2];   // by priority
    std::size_t next[2] = {0, 0};
    int running = 0;  // NCCL operations
  };
  struct RankThread {
    int rank;
    bool idle;  // in a wait, or made many queries without success, since the last activity
    std::string what;
    int queries = 0;  // without success, since the last activity
  };

  Simulator();
  bool advance();
  bool step(CUstream_st& stream);
  void pop(CUstream_st& stream);
  void check_progress();
  std::string describe_deadlock() const;
  std::string describe_queues() const;
  std::string describe_cycle() const;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::mt19937_64 random_;
  std::vector<Device> devices_;
  std::vector<CUstream_st*> busy_;  // streams with a queue
  std::vector<RankThread*> ranks_;
  int to_start_ = 0;  // ranks
  Schedule schedule_;
  std::chrono::steady_clock::time_point last_activity_ = {};
  bool failed_ = false;
  std::deque<std::string> failure_;  // all runs: callers keep pointers to the texts
  std::vector<std::string> errors_;
  static thread_local RankThread* this_rank_;
};

}  // namespace dtensor::test::fake_cuda

struct CUstream_st {
  int device = 0;
  int index = 0;
  std::deque<dtensor::test::fake_cuda::Item> queue = {};
  dtensor::test::fake_cuda::Clock clock = {};  // of the last operation that was added
};

struct CUevent_st {
  int device = 0;
  std::shared_ptr<dtensor::test::fake_cuda::Record> last = {};  // null: never recorded
};

namespace dtensor::test::fake_cuda {

// "stream 3 of device 1".
std::string name_of(const CUstream_st& stream);

}  // namespace dtensor::test::fake_cuda
