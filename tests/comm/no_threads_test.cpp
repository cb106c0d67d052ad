// A process of several whose system gives it no more threads.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>

#include "dtensor/launch.h"
#include "support/sanitizer.h"

namespace dtensor::test {
namespace {

[[noreturn]] void launch_without_threads() {
  std::size_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  const rlim_t most = pages * static_cast<std::size_t>(sysconf(_SC_PAGESIZE)) + (std::size_t{4} << 20);
  const rlimit limit{most, most};  // less than the stack of a thread
  setrlimit(RLIMIT_AS, &limit);
  char program[] = "program", flag[] = "--backend", socket[] = "socket";
  char* argv[] = {program, flag, socket};
  std::_Exit(launch(3, argv, [](Communicator) {}));
}

TEST(NoThreads, AreALineAndStatusOne) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer takes memory of its own";
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";  // a fork would lack the pool's threads
  EXPECT_EXIT(launch_without_threads(), ::testing::ExitedWithCode(1), "rank 0: ");
}

}  // namespace
}  // namespace dtensor::test
