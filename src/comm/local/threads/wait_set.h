// How a thread rank waits for another: it spins, then yields, then sleeps.
#pragma once

#include <c10/util/FunctionRef.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <string>
#include <vector>

#include "comm/local/threads/world.h"

namespace dtensor::local {

// Describes a wait in error messages.
struct WaitDescription {
  std::int64_t rank;                                       // the waiting world rank
  c10::function_ref<std::string()> operation;              // the call: "all_reduce #3 (...) on tp {0, 1}"
  c10::function_ref<std::vector<std::int64_t>()> missing;  // the awaited world ranks
};

class WaitSet {
 public:
  explicit WaitSet(World& world) : world_(world) {}

  // Returns when `ready`. Throws CommError if the world fails, if an awaited rank leaves, or after the world's
  // timeout. The message names the waiting rank, its call and the awaited ranks.
  template <class Ready>
  void wait(const WaitDescription& text, Ready&& ready) {
    if (!spin(ready)) block(text, c10::function_ref<bool()>(ready));
  }

  // Call this after making a `ready` condition true.
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
