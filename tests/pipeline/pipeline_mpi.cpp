// The trials of pipelines over MPI: every schedule, with and without parallel stages.
#include <signal.h>
#include <unistd.h>

#include <cstdio>

#include "dtensor/launch.h"
#include "pipeline/trials.h"

namespace {

using namespace dtensor;
using namespace dtensor::test::pipelines;

// The second stage fails in its third forward, for mpi_failure_test.cpp.
void fail(const Communicator& world, bool throws) {
  const DeviceMesh mesh = init_device_mesh(world, at::kCPU, {world.size()}, {"pp"});
  Pipeline pipe(mesh, pipeline::make_schedule("1f1b", world.size(), 4), mean_loss);
  int calls = 0;
  pipe.set_stage(world.rank(), [&](const Tensors& in) {
    if (world.rank() == 1 && ++calls == 3) {
      if (!throws) kill(getpid(), SIGKILL);
      throw std::runtime_error("no more of this");
    }
    return in;
  });
  const std::vector<Tensors> inputs(4, {at::randn({2, kClasses})}), targets(4, {at::zeros({2}, at::kLong)});
  pipe.step(inputs, targets);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string failure = argc == 3 && std::string(argv[1]) == "--case" ? argv[2] : "";
  if (!failure.empty()) return launch(1, argv, [&](const Communicator& world) { fail(world, failure == "throw"); });
  return launch(argc, argv, [](const Communicator& world) {
    int trials = 0;
    for (const std::string& schedule : pipeline::schedule_names()) {
      for (const StageParallelism inside : {StageParallelism::nothing, StageParallelism::fsdp, StageParallelism::tp}) {
        for (const int count : {1, 2, 5}) {
          const int ranks = world.size() / (inside == StageParallelism::nothing ? 1 : 2);
          const Trial trial{.schedule = schedule,
                            .ranks = ranks,
                            .microbatches = count,
                            .rows = 13,
                            .inside = inside,
                            .recompute = count == 2,
                            .seed = 9};
          run_trial(trial, one_device(trial), world);
          TORCH_CHECK(!testing::Test::HasFailure(), "differs from one device: ", schedule);
          ++trials;
        }
      }
    }
    if (world.rank() == 0) std::printf("ok: %d trials (%s)\n", trials, world.backend_name());
  });
}
