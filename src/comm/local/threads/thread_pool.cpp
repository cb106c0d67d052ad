// A run takes idle threads, or starts new ones, before any body begins: if the system has no more threads or memory,
// nothing has run yet. Each thread returns to the pool when its body returns. Nested runs take other threads, so that
// no run waits for a thread.
#include "comm/local/threads/thread_pool.h"

#include <c10/util/Exception.h>

#include <atomic>
#include <condition_variable>
#include <exception>
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
  int started = 0;
  std::atomic<int> running{0};

  // Throws if a thread cannot be started; threads started before that stay idle in the pool.
  std::vector<Worker*> take(int n) {
    std::lock_guard lock(mutex);
    for (auto there = static_cast<int>(idle.size()); there < n; ++there) {
      try {
        idle.reserve(static_cast<std::size_t>(started + 1));  // so that put() never fails
        auto worker = std::make_unique<Worker>();
        std::thread([w = worker.get()] { w->loop(); }).detach();
        idle.push_back(worker.release());
        ++started;
      } catch (const std::exception& error) {  // no more threads, or no more memory
        TORCH_CHECK(false, "cannot start thread ", there + 1, " of the ", n, " that thread ranks need: ", error.what());
      }
    }
    std::vector<Worker*> taken(idle.end() - n, idle.end());
    idle.resize(idle.size() - taken.size());
    return taken;
  }
  void put(Worker* worker) {
    std::lock_guard lock(mutex);
    idle.push_back(worker);
  }
};

// Never destroyed: its threads sleep until the process exits.
Pool& pool() {
  static auto* the_pool = new Pool;
  return *the_pool;
}

}  // namespace

int running_threads() { return pool().running.load(); }

void run_on_threads(int n, const std::function<void(int)>& body) {
  auto done = std::make_shared<std::latch>(n);
  std::vector<Worker*> workers(static_cast<std::size_t>(n));
  std::vector<std::function<void()>> jobs;
  for (int i = 0; i < n; ++i) {
    jobs.emplace_back([&body, done, &workers, i] {
      Worker* worker = workers[static_cast<std::size_t>(i)];
      body(i);
      pool().running -= 1;
      pool().put(worker);
      done->count_down();
    });
  }
  workers = pool().take(n);
  pool().running += n;
  for (std::size_t i = 0; i < workers.size(); ++i) workers[i]->start(std::move(jobs[i]));  // allocates nothing
  done->wait();
}

}  // namespace dtensor::local
