// Ranks that hold a lock of their language while they call, as Python does: whoever waits must have given it up.
#include "dtensor/wait_hooks.h"

#include <gtest/gtest.h>

#include <mutex>

#include "dtensor/comm.h"

namespace dtensor {
namespace {

std::mutex language;
thread_local bool holds = false;

void* give_up() {
  if (!holds) return nullptr;
  holds = false;
  language.unlock();
  return &language;
}

void take_back(void*) {
  language.lock();
  holds = true;
}

class HeldLock {
 public:
  HeldLock() { take_back(nullptr); }
  ~HeldLock() { give_up(); }
};

TEST(WaitHooks, AreRunAroundEveryWait) {
  set_wait_hooks({&give_up, &take_back});
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
  set_wait_hooks({});
}

TEST(WaitHooks, LeaveThoseAloneThatHoldNothing) {
  set_wait_hooks({&give_up, &take_back});
  run_local(2, [](const Communicator& world) {
    world.barrier();
    EXPECT_FALSE(holds);
  });
  set_wait_hooks({});
}

}  // namespace
}  // namespace dtensor
