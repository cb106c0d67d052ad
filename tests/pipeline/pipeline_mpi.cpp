// The pipeline's trials over MPI: every schedule, with and without parallel stages.
#include <cstdio>

#include "dtensor/launch.h"
#include "pipeline/trials.h"

int main(int argc, char** argv) {
  using namespace dtensor;
  using namespace dtensor::test::pipelines;
  return launch(argc, argv, [](const Communicator& world) {
    int trials = 0;
    for (const std::string& schedule : pipeline::schedule_names()) {
      for (const Inside inside : {Inside::nothing, Inside::fsdp, Inside::tp}) {
        for (const int count : {1, 2, 5}) {
          const int ranks = world.size() / (inside == Inside::nothing ? 1 : 2);
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
