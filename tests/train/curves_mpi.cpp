// The losses and gradient norms of the reference run under mpirun, on every mesh (replicate, shard, tp) of the world's
// size, and with split sequences on each of them.
#include <ATen/ATen.h>

#include <cstdio>

#include "dtensor/launch.h"
#include "mesh_run.h"
#include "resume.h"
#include "train/signals.h"

namespace {

using oracle::Curves;
using oracle::Variant;

std::vector<train::MeshShape> shapes_of(int ranks) {
  std::vector<train::MeshShape> shapes;
  for (int replicate = 1; replicate <= ranks; ++replicate) {
    for (int shard = 1; shard <= ranks / replicate; ++shard) {
      const train::MeshShape shape{replicate, shard, ranks / replicate / shard};
      if (shape.size() == ranks) shapes.push_back(shape);
    }
  }
  const std::int64_t rest = ranks / 2;
  for (const train::MeshShape& shape : std::vector<train::MeshShape>{
           {.cp = ranks}, {.shard = rest, .cp = 2}, {.replicate = rest, .cp = 2}, {.tp = rest, .cp = 2}}) {
    if (shapes.back() != shape) shapes.push_back(shape);
  }
  return shapes;
}

void check_close(const std::vector<double>& got, const std::vector<double>& expected, const std::string& what) {
  for (std::size_t step = 0; step < expected.size(); ++step) {
    const double difference = std::abs(got.at(step) - expected[step]) / std::abs(expected[step]);
    TORCH_CHECK(difference <= 1e-5, what, " of step ", step, " is ", got[step], ", not ", expected[step]);
  }
}

void check_all(const dtensor::Communicator& world) {
  for (const train::MeshShape& shape : shapes_of(world.size())) {
    for (const bool loss_parallel : {false, true}) {
      const bool units = loss_parallel == (shape.tp > 1);  // Placements alone in the other case.
      const Curves curves =
          oracle::run_on_mesh(world, {.shape = shape, .loss_parallel = loss_parallel, .units = units});
      const std::string what = shape.str() + (loss_parallel ? " with loss parallel" : "") + (units ? " in units" : "");
      check_close(curves.loss, oracle::curve("loss"), what + ": loss");
      check_close(curves.grad_norm, oracle::curve("grad_norm"), what + ": gradient norm");
      if (world.rank() == 0) std::printf("ok %s (%s)\n", what.c_str(), world.backend_name());
    }
  }
}

// Stops on one mesh and resumes on another.
void check_resume(const dtensor::Communicator& world) {
  const int n = world.size();
  train::Options options = resume::options();
  options.mesh = train::MeshShape{1, n, 1};
  const auto full = train::train_on_mesh(world, options, resume::corpus(), {});
  train::Options first = options, rest = options;
  first.steps = 4;
  first.save = rest.load = resume::folder("mpi_" + std::to_string(n));
  train::train_on_mesh(world, first, resume::corpus(), {});
  for (const train::MeshShape& to : {train::MeshShape{1, n, 1}, train::MeshShape{1, 1, n}, train::MeshShape{n, 1, 1}}) {
    rest.mesh = to;
    const auto records = train::train_on_mesh(world, rest, resume::corpus(), {});
    const double difference = resume::largest_difference(records, full);
    TORCH_CHECK(records.size() == 6 && difference <= (to.shard == n ? 0 : 1e-9), "resumed on ", to.str(), ": ",
                records.size(), " steps, difference ", difference);
  }
  world.barrier();
  if (world.rank() == 0) std::filesystem::remove_all(first.save);
  if (world.rank() == 0) std::printf("ok resumed on %d ranks (%s)\n", n, world.backend_name());
}

// One rank gets a termination signal: all ranks save at the same step and stop there; then they resume.
void check_leave(const dtensor::Communicator& world, int signal) {
  const int n = world.size();
  train::Options options = resume::options();
  options.mesh = train::MeshShape{1, n, 1};
  const auto full = train::train_on_mesh(world, options, resume::corpus(), {});
  options.save = resume::folder("mpi_left_" + std::to_string(n));
  options.keep = 1;
  options.resume = "latest";
  const train::TerminationSignals signals;
  const auto first = train::train_on_mesh(world, options, resume::corpus(), [&](const train::StepRecord& record) {
    if (record.step == 3 && world.rank() == n - 1) ::raise(signal);
  });
  TORCH_CHECK(first.size() == 4 && first.back().stop_signal == signal, "left after ", first.size(), " steps by ",
              first.back().stop_signal);
  {
    const train::TerminationSignals again;  // Clears the signal.
    const auto rest = train::train_on_mesh(world, options, resume::corpus(), {});
    TORCH_CHECK(rest.size() == 6 && resume::largest_difference(rest, full) == 0, "went on for ", rest.size(), " steps");
  }
  world.barrier();
  if (world.rank() == 0) std::filesystem::remove_all(options.save);
  if (world.rank() == 0) std::printf("ok left by %s on %d ranks\n", train::TerminationSignals::name(signal).c_str(), n);
}

}  // namespace

int main(int argc, char** argv) {
  return dtensor::launch(argc, argv, [](const dtensor::Communicator& world) {
    check_all(world);
    check_resume(world);
    check_leave(world, SIGTERM);
    check_leave(world, SIGUSR1);
  });
}
