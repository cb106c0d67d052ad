// The pool of rank threads on a system that cannot start more threads.
#include "comm/local/threads/thread_pool.h"

#include <pthread.h>

#include <atomic>

#include "comm/fixture.h"

namespace dtensor::test {
namespace {

// While it lives, no thread can be started, because the default stack size is too large.
class NoMoreThreads {
 public:
  NoMoreThreads() {
    pthread_getattr_default_np(&before_);
    pthread_attr_t huge;
    pthread_attr_init(&huge);
    pthread_attr_setstacksize(&huge, std::size_t{1} << 47);
    pthread_setattr_default_np(&huge);
    pthread_attr_destroy(&huge);
  }
  ~NoMoreThreads() {
    pthread_setattr_default_np(&before_);
    pthread_attr_destroy(&before_);
  }
  NoMoreThreads(const NoMoreThreads&) = delete;
  NoMoreThreads& operator=(const NoMoreThreads&) = delete;

 private:
  pthread_attr_t before_;
};

TEST(ThreadPool, FailureToStartAThreadIsAnErrorBeforeAnyBodyRuns) {
  run_local(3, [](Communicator) {});  // the pool starts with three threads
  std::atomic<int> ran{0};
  {
    const NoMoreThreads none;
    std::string error;
    try {
      run_local(300, [&](Communicator) { ++ran; });
    } catch (const c10::Error& e) {
      error = e.what_without_backtrace();
    }
    EXPECT_NE(error.find("300"), std::string::npos) << error;
  }
  EXPECT_EQ(local::running_threads(), 0);
  EXPECT_EQ(ran, 0);
  run_local(5, [&](Communicator world) {
    world.barrier();
    ++ran;
  });
  EXPECT_EQ(ran, 5);
}

}  // namespace
}  // namespace dtensor::test
