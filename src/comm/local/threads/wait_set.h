// How a thread rank waits for another: briefly hot, then giving way, then asleep.
#pragma once

#include <c10/util/FunctionRef.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <string>
#include <vector>

#include "comm/local/threads/world.h"

namespace dtensor::local {

// What to say about a wait that goes wrong.
struct WaitDescription {
  std::int64_t rank;                                       // who waits (world rank)
  c10::function_ref<std::string()> operation;              // in what: "all_reduce #3 (...) on tp {0, 1}"
  c10::function_ref<std::vector<std::int64_t>()> missing;  // for whom (world ranks)
};

class WaitSet {
 public:
  explicit WaitSet(World& world) : world_(world) {}

  // Returns when `ready`. Throws CommError when the world fails, when somebody who is waited for leaves, and after the
  // world's timeout, failing the world with a text that says who waits where and for whom.
  template <class Ready>
  void wait(const WaitDescription& text, Ready&& ready) {
    if (!spin(ready)) block(text, c10::function_ref<bool()>(ready));
  }

  // Call after making some `ready` true.
  void wake() {
    if (sleepers_.load() == 0) return;
    std::lock_guard lock(mutex_);
    condition_.notify_all();
  }

 private:
  template <class Ready>
  bool spin(Ready& ready) const {
    for (int i = 0; i < world_.spins(); ++i) {
      if (ready()) return true;
      pause_cpu();
    }
    return false;
  }
  static void pause_cpu() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
  }
  void block(const WaitDescription& text, c10::function_ref<bool()> ready);
  bool yield_thread(c10::function_ref<bool()> ready) const;
  void sleep_until_woken(const WaitDescription& text, c10::function_ref<bool()> ready);
  void check(const WaitDescription& text, c10::function_ref<bool()> ready);
  void fail(const std::string& what, const WaitDescription& text) const;

  World& world_;
  std::atomic<int> sleepers_{0};
  std::mutex mutex_;
  std::condition_variable condition_;
};

}  // namespace dtensor::local
