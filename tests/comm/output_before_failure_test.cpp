// Output of a process before its rank fails.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>

#include "dtensor/launch.h"

namespace dtensor::test {
namespace {

// One process with the socket backend ends when its rank fails, without return to main().
[[noreturn]] void print_and_fail(const std::string& path) {
  for (const char* name : {"DTENSOR_RANK", "DTENSOR_WORLD_SIZE", "RANK", "WORLD_SIZE", "OMPI_COMM_WORLD_RANK",
                           "OMPI_COMM_WORLD_SIZE", "PMI_RANK", "PMI_SIZE", "SLURM_PROCID"}) {
    unsetenv(name);
  }
  if (std::freopen(path.c_str(), "w", stdout) == nullptr) std::_Exit(3);
  char program[] = "program", flag[] = "--backend", socket[] = "socket";
  char* argv[] = {program, flag, socket};
  std::_Exit(launch(3, argv, [](Communicator) {
    std::printf("step 1\n");
    throw std::runtime_error("the disk is full");
  }));
}

// The output shows how far a run came.
TEST(LastOutput, IsWrittenBeforeAFailureEndsTheProcess) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";  // a fork would lack the pool's threads
  const std::string path = ::testing::TempDir() + "printed_before_a_failure";
  std::remove(path.c_str());
  EXPECT_EXIT(print_and_fail(path), ::testing::ExitedWithCode(1), "the disk is full");
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  EXPECT_EQ(line, "step 1");
}

}  // namespace
}  // namespace dtensor::test
