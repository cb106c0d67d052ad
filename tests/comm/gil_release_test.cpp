// Ranks that hold a language lock during a call, as Python's GIL: a rank that waits must release it.
#include "internal/ranks/gil_hooks.h"

#include <gtest/gtest.h>

#include <atomic>
#include <mutex>
#include <thread>

#include "dtensor/comm.h"

namespace dtensor {
namespace {

std::mutex language;
thread_local bool holds = false;

void* release_lock() {
  if (!holds) return nullptr;
  holds = false;
  language.unlock();
  return &language;
}

void reacquire(void*) {
  language.lock();
  holds = true;
}

class HeldLock {
 public:
  HeldLock() { reacquire(nullptr); }
  ~HeldLock() { release_lock(); }
};

TEST(GilReleaseHooks, AreRunAroundEveryWait) {
  set_gil_release_hooks({&release_lock, &reacquire});
  RunOptions options;
  options.timeout = std::chrono::seconds(20);  // without the hooks, the other ranks cannot reach the barrier
  run_local(
      3,
      [](const Communicator& world) {
        const HeldLock lock;
        for (int i = 0; i < 20; ++i) {
          world.barrier();
          EXPECT_TRUE(holds);
        }
      },
      options);
  set_gil_release_hooks({});
}

// Each rank leaves after the others have left, which need the lock. A deadlock ends the program.
TEST(GilReleaseHooks, AreRunIfACollectiveFails) {
  set_gil_release_hooks({&release_lock, &reacquire});
  std::atomic<bool> over{false};
  std::thread run([&] {
    EXPECT_THROW(run_local(4,
                           [](const Communicator& world) {
                             if (world.rank() == 3) {
                               std::this_thread::sleep_for(std::chrono::milliseconds(100));
                               throw std::runtime_error("the disk is full");
                             }
                             const HeldLock lock;
                             world.barrier();
                           }),
                 std::runtime_error);
    over = true;
  });
  for (int look = 0; look < 10000 && !over; ++look) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  if (!over) std::fputs("deadlock: ranks that leave a failed collective block each other\n", stderr), std::_Exit(1);
  run.join();
  set_gil_release_hooks({});
}

TEST(GilReleaseHooks, DoNotAcquireForThreadsWithoutTheLock) {
  set_gil_release_hooks({&release_lock, &reacquire});
  run_local(2, [](const Communicator& world) {
    world.barrier();
    EXPECT_FALSE(holds);
  });
  set_gil_release_hooks({});
}

}  // namespace
}  // namespace dtensor
