// A process of a multi-process job whose system cannot start more threads.
#include <gtest/gtest.h>

#include <cstdlib>

#include "dtensor/launch.h"
#include "support/address_space.h"
#include "support/sanitizer.h"

namespace dtensor::test {
namespace {

[[noreturn]] void launch_without_threads() {
  limit_address_space(std::uint64_t{4} << 20);  // less than the stack of a thread
  char program[] = "program", flag[] = "--backend", socket[] = "socket";
  char* argv[] = {program, flag, socket};
  std::_Exit(launch(3, argv, [](Communicator) {}));
}

TEST(NoThreads, LaunchFailsWithOneLineAndStatusOne) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer allocates its own memory";
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";  // a fork would lack the pool's threads
  EXPECT_EXIT(launch_without_threads(), ::testing::ExitedWithCode(1), "rank 0: ");
}

}  // namespace
}  // namespace dtensor::test
