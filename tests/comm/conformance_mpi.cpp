// The conformance suite on MPI processes. Every process runs every test; a test on fewer ranks uses the first
// processes.
#include <iostream>
#include <utility>

#include "comm/cases_mpi.h"
#include "comm/fixture.h"
#include "comm/memory/pool/available_memory.h"
#include "dtensor/comm.h"
#include "dtensor/launch.h"

namespace dtensor::test {
namespace {
Communicator world_of_this_run;
}

void on_ranks(int ranks, const std::function<void(Communicator)>& body) {
  if (ranks > world_of_this_run.size()) GTEST_SKIP() << "needs " << ranks << " processes";
  const auto part = world_of_this_run.split(world_of_this_run.rank() < ranks ? 0 : -1, world_of_this_run.rank());
  if (part) body(part);
  world_of_this_run.barrier();
}

}  // namespace dtensor::test

namespace dtensor::mpi {
extern std::int64_t max_message_bytes;
}

namespace dtensor::test {
namespace {

// Messages above 2^31 bytes are split into several. Here the limit is 1000 bytes.
TEST(MpiMessages, LongMessagesAreSplit) {
  const auto usual = std::exchange(mpi::max_message_bytes, 1000);
  const Communicator world = world_of_this_run;
  const int n = world.size(), next = (world.rank() + 1) % n, previous = (world.rank() + n - 1) % n;
  for (std::int64_t count : {249, 250, 251, 5003}) {
    const at::Tensor sum = at::arange(count, at::kFloat) + world.rank();
    world.all_reduce(sum, ReduceOp::max).wait();
    EXPECT_TRUE(at::equal(sum, at::arange(count, at::kFloat) + (n - 1)));
    if (n == 1) continue;
    const at::Tensor taken = at::zeros({count});
    Work sent = world.send(at::arange(count, at::kFloat) * world.rank(), next);
    world.recv(taken, previous).wait();
    sent.wait();
    EXPECT_TRUE(at::equal(taken, at::arange(count, at::kFloat) * previous));
  }
  mpi::max_message_bytes = usual;
}

// All of these processes are on one host.
TEST(ProcessMemory, ProcessesOfAHostShareThePoolLimit) {
  const auto together = std::min<std::size_t>(available_memory() / 8, std::size_t{4} << 30);
  EXPECT_EQ(memory_pool_stats().limit_bytes, together / static_cast<std::size_t>(world_of_this_run.size()));
}

// Needs 2 GB per rank: run it manually with --gtest_also_run_disabled_tests.
TEST(MpiMessages, DISABLED_MoreThanTwoToThe31Elements) {
  const std::int64_t count = (std::int64_t{1} << 31) + 77;
  const at::Tensor x = at::full({count}, world_of_this_run.rank() == 0 ? 7 : 0, at::kByte);
  world_of_this_run.broadcast(x, 0).wait();
  EXPECT_TRUE(x.eq(7).all().item<bool>());
}

}  // namespace
}  // namespace dtensor::test

#include "comm/conformance_test.cpp"  // the same tests
#include "comm/fixture_test.cpp"
#include "comm/groups_test.cpp"
#include "comm/lists_test.cpp"
#include "comm/resolved_values_test.cpp"

int main(int argc, char** argv) {
  if (argc > 2 && std::string(argv[1]) == "--case") return dtensor::test::run_case(argv[2], argc, argv);
  ::testing::InitGoogleTest(&argc, argv);
  int failed = 0;
  const int status = dtensor::launch(argc, argv, [&](dtensor::Communicator world) {
    dtensor::test::world_of_this_run = world;
    if (world.rank() != 0) {
      auto& listeners = ::testing::UnitTest::GetInstance()->listeners();
      delete listeners.Release(listeners.default_result_printer());
    }
    failed = RUN_ALL_TESTS();
    dtensor::test::world_of_this_run = {};
    TORCH_CHECK(failed == 0, "tests failed on this rank");
  });
  return status != 0 ? status : failed;
}
