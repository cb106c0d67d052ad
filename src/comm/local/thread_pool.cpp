// A run takes idle threads, or makes some, and each puts itself back when its body returns. Nested runs take others, so
// that nothing ever waits for a thread.
#include "comm/local/thread_pool.h"

#include <atomic>
#include <condition_variable>
#include <latch>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace dtensor::local {
namespace {

class Worker {
 public:
  void start(std::function<void()> job) {
    {
      std::lock_guard lock(mutex_);
      job_ = std::move(job);
    }
    condition_.notify_one();
  }
  void loop() {
    for (;;) {
      std::unique_lock lock(mutex_);
      condition_.wait(lock, [&] { return job_ != nullptr; });
      const auto job = std::exchange(job_, nullptr);
      lock.unlock();
      job();
    }
  }

 private:
  std::mutex mutex_;
  std::condition_variable condition_;
  std::function<void()> job_;
};

struct Pool {
  std::mutex mutex;
  std::vector<Worker*> idle;
  std::atomic<int> running{0};

  Worker* take() {
    {
      std::lock_guard lock(mutex);
      if (!idle.empty()) {
        Worker* worker = idle.back();
        idle.pop_back();
        return worker;
      }
    }
    auto* worker = new Worker;
    std::thread([worker] { worker->loop(); }).detach();
    return worker;
  }
  void put(Worker* worker) {
    std::lock_guard lock(mutex);
    idle.push_back(worker);
  }
};

// Never destroyed: its threads sleep until the process ends.
Pool& pool() {
  static auto* the_pool = new Pool;
  return *the_pool;
}

}  // namespace

int running_threads() { return pool().running.load(); }

void run_on_threads(int n, const std::function<void(int)>& body) {
  auto done = std::make_shared<std::latch>(n);
  pool().running += n;
  for (int i = 0; i < n; ++i) {
    Worker* worker = pool().take();
    worker->start([&body, done, worker, i] {
      body(i);
      pool().running -= 1;
      pool().put(worker);
      done->count_down();
    });
  }
  done->wait();
}

}  // namespace dtensor::local
