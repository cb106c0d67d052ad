// Dry runs predict what processes do, as they predict thread ranks.
#include <ATen/ATen.h>

#include <cstdio>

#include "dry_run/random_runs.h"
#include "dtensor/launch.h"

namespace {

dry::Options options_of(unsigned seed, int ranks) {
  auto meshes = dry::meshes();
  std::erase_if(meshes, [&](const auto& mesh) { return mesh.size() != ranks; });
  const auto draw = rc::gen::exec([&] { return dry::any_options(meshes); });
  auto options = draw(rc::Random(seed), rc::kNominalSize).value();
  options.device = "cpu";
  if (options.experts) options.experts->show_load = false;
  return options;
}

// Send and receive buffers of the largest gradient.
double staging(const dry::Options& o) {
  return 2.0 * static_cast<double>(std::max<std::int64_t>(257, 4 * o.hidden) * o.hidden * 8);
}

}  // namespace

int main(int argc, char** argv) {
  return dtensor::launch(argc, argv, [](const dtensor::Communicator& world) {
    for (unsigned seed = 0; seed < 6; ++seed) {
      const auto options = options_of(seed, world.size());
      const auto run = [&](const dtensor::Communicator& ranks) { dry::train_two_steps(ranks, options, dry::corpus()); };
      dry::Reports reports;
      {
        const dtensor::StepRecorder recorder;
        run(world);
        reports.measured = recorder.report(world);
      }
      reports.predicted = dtensor::dry_run({.ranks = world.size(), .rank = world.rank(), .number = 1}, run);
      const auto wrong = dry::difference(options, reports, staging(options));
      TORCH_CHECK(wrong.empty(), "rank ", world.rank(), ": ", wrong, " of ", dry::text(options), "\npredicted\n",
                  reports.predicted.table(), "measured\n", reports.measured.table());
      if (world.rank() == 0) std::printf("ok %s (%s)\n", dry::text(options).c_str(), world.backend_name());
    }
  });
}
