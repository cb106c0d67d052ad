// Failing programs for campaign_test.cpp under MPI: `--divergence N`, `--pair A B` and `--index` must end with an
// error, and so must `--disk stop CALL FOLDER`, but not `--disk slow CALL FOLDER`. Each is a separate job, because one
// failure ends a job. Without arguments, runs programs that do not diverge.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "dtensor/launch.h"
#include "faults/calls.h"
#include "faults/disk_mpi.h"
#include "faults/divergence.h"

using namespace dtensor;

namespace {

void run_right_programs(const Communicator& world) {
  const Checked checked(Checks::calls);
  for (const auto& kind : test::divergences()) {
    for (const bool astray : {false, true}) test::run_divergence(kind, world, astray);
  }
  for (const auto& call : test::comm_calls()) call.run(world);
}

void run_divergence(const Communicator& world, std::size_t index) {
  const Checked checked(Checks::calls);
  test::run_divergence(test::divergences().at(index), world, world.rank() == 1);
}

void run_pair(const Communicator& world, std::size_t usual, std::size_t astray) {
  test::comm_calls().at(world.rank() == 1 ? astray : usual).run(world);
  world.barrier();
}

// Split indices: only the last rank has the invalid one.
void run_index(const Communicator& world) {
  const auto mesh = init_device_mesh(world, at::kCPU, {world.size()});
  at::Tensor index = at::zeros({world.size(), 4}, at::kLong);
  index[world.size() - 1][2] = 9;
  const at::Tensor x = distribute_tensor(at::ones({5, 4}), mesh, {Replicate()});
  const at::Tensor rows = at::gather(x, 0, distribute_tensor(index, mesh, {Shard(0)}));
  DTensor(rows.sum()).full_tensor();
}

}  // namespace

int main(int argc, char** argv) {
  const auto number = [&](int i) { return static_cast<std::size_t>(argc > i ? std::atoi(argv[i]) : 0); };
  const bool divergence = argc > 2 && std::strcmp(argv[1], "--divergence") == 0;
  const bool pair = argc > 3 && std::strcmp(argv[1], "--pair") == 0;
  const bool index = argc > 1 && std::strcmp(argv[1], "--index") == 0;
  const bool disk = argc > 4 && std::strcmp(argv[1], "--disk") == 0;
  RunOptions options;
  options.timeout = std::chrono::milliseconds(disk ? 1500 : 20000);
  return launch(
      argc, argv,
      [&](Communicator world) {
        if (divergence) return run_divergence(world, number(2));
        if (pair) return run_pair(world, number(2), number(3));
        if (index) return run_index(world);
        if (disk) return test::run_disk_fault(world, argv[2], argv[3], argv[4]);
        run_right_programs(world);
      },
      options);
}
