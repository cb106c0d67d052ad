// The message-passing potential between processes.
#include <ATen/ATen.h>

#include <cstdio>

#include "cases.h"
#include "dtensor/launch.h"

int main(int argc, char** argv) {
  return dtensor::launch(argc, argv, [](const dtensor::Communicator& world) {
    for (const std::int64_t side : {2, 4}) potential::test::check(world, side, 1);
    TORCH_CHECK(!testing::Test::HasFailure(), "differs from one part");
    if (world.rank() == 0) std::printf("ok potential (%s)\n", world.backend_name());
  });
}
