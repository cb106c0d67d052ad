// Ranks that hold a lock of their language while they call, as Python does: whoever waits must have given it up.
#include "internal/gil_hooks.h"

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
  options.timeout = std::chrono::seconds(20);  // without the hooks: nobody gets to where the first one waits
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

// Each leaves when the others are through, who need the lock for that. Ends the program where they block each other.
TEST(GilReleaseHooks, AreRunWhereACollectiveFails) {
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
  if (!over) std::fputs("ranks that leave a collective block each other\n", stderr), std::_Exit(1);
  run.join();
  set_gil_release_hooks({});
}

TEST(GilReleaseHooks, LeaveThoseAloneThatHoldNothing) {
  set_gil_release_hooks({&release_lock, &reacquire});
  run_local(2, [](const Communicator& world) {
    world.barrier();
    EXPECT_FALSE(holds);
  });
  set_gil_release_hooks({});
}

}  // namespace
}  // namespace dtensor
