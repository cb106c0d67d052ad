// Training programs on the NCCL backend equal one device, on any schedule of the devices: no deadlock, no race, no
// memory that is freed too early.
#include "fake_cuda/programs.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>

#include "fake_cuda/calls.h"

namespace dtensor::test::fake_cuda {
namespace {

// DTENSOR_SCHEDULES=FIRST:COUNT runs programs of each kind with these seeds.
void run_programs(Program (*program)(std::uint64_t)) {
  unsigned long long first = 1, count = 20;
  if (const char* asked = std::getenv("DTENSOR_SCHEDULES")) {
    ASSERT_EQ(std::sscanf(asked, "%llu:%llu", &first, &count), 2) << "expected FIRST:COUNT, got " << asked;
  }
  for (std::uint64_t seed = first; seed < first + count && !::testing::Test::HasFailure(); ++seed) {
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
