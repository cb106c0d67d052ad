// Training programs on the NCCL backend equal one device, on any schedule of the devices: no deadlock, no race, no
// memory that is freed too early.
#include "fake_cuda/programs.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "fake_cuda/calls.h"

namespace dtensor::test::fake_cuda {
namespace {

// DTENSOR_SCHEDULES=N runs N programs of each kind.
std::uint64_t schedules() {
  const char* number = std::getenv("DTENSOR_SCHEDULES");
  return number != nullptr ? std::strtoull(number, nullptr, 10) : 20;
}

void run_programs(Program (*program)(std::uint64_t)) {
  for (std::uint64_t seed = 1; seed <= schedules() && !::testing::Test::HasFailure(); ++seed) {
    const Program drawn = program(seed);
    SCOPED_TRACE(drawn.name);
    expect_none(errors_of_ranks(drawn.ranks, {seed}, drawn.run));
  }
}

TEST(FakePrograms, FsdpMatchesSingleDevice) { run_programs(&fsdp_program); }
TEST(FakePrograms, TensorParallelismMatchesSingleDevice) { run_programs(&tensor_parallel_program); }
TEST(FakePrograms, PipelinesMatchSingleDevice) { run_programs(&pipeline_program); }
TEST(FakePrograms, ContextParallelismMatchesSingleDevice) { run_programs(&context_parallel_program); }
TEST(FakePrograms, ExpertParallelismMatchesSingleDevice) { run_programs(&expert_parallel_program); }

}  // namespace
}  // namespace dtensor::test::fake_cuda
