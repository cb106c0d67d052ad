// The conformance suite over MPI processes: every process runs every test; a test on fewer ranks than there are
// processes takes the first ones.
#include <iostream>

#include "comm/cases_mpi.h"
#include "comm/fixture.h"
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

#include "comm/conformance_test.cpp"  // the same tests
#include "comm/fixture_test.cpp"

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
