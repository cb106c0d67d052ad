// A U-Net on a volume whose depth, height and width are sharded, compared with one device.
//
//   unet --ranks 8 --mesh 2,2,2         thread ranks
//   mpirun -n 4 unet --mesh 2,2         processes
//
// Exit status: 0; 1 if a loss or a parameter differs from one device by more than 1e-9.
#include <atomic>
#include <cmath>
#include <cstdio>

#include "command_line.h"
#include "dtensor/launch.h"
#include "launch_flags.h"
#include "training.h"

namespace {

using namespace unet;
using dtensor::Communicator;

// Whether the ranks and one device agree after each step.
bool run(const Communicator& world, const Options& options, std::vector<std::int64_t> shape, std::int64_t steps) {
  if (shape.empty()) shape = {world.size()};
  const auto mesh = dtensor::init_device_mesh(world, at::kCPU, shape);
  Training ranks(options, mesh), one(options);
  const bool shows = world.rank() == 0;
  if (shows) std::printf("step             loss  forward bytes backward bytes  difference to one device\n");
  double largest = 0;
  for (std::int64_t i = 0; i < steps; ++i) {
    const double loss = ranks.step(), expected = one.step();
    const double difference =
        std::max(std::abs(loss - expected), largest_difference(ranks.parameters(), one.parameters()));
    if (shows)
      std::printf("%4lld %16.10f %14lld %14lld %25.1e\n", static_cast<long long>(i), loss,
                  static_cast<long long>(ranks.forward_bytes()), static_cast<long long>(ranks.backward_bytes()),
                  difference);
    largest = std::max(largest, difference);
  }
  return largest <= 1e-9;
}

}  // namespace

int main(int argc, char** argv) {
  Options options{.sizes = {16, 16, 16}};
  std::vector<std::int64_t> mesh;
  std::int64_t steps = 3;
  const CLI::Validator multiple_of_4(
      [](const std::string& text) { return std::stoll(text) % 4 == 0 ? "" : text + " is not a multiple of 4"; },
      "MULTIPLE OF 4");
  CLI::App app("Trains a U-Net on a volume whose spatial dimensions are sharded, and compares with one device.");
  app.add_option("--size", options.sizes, "depth, height and width of the volume")
      ->expected(3)
      ->delimiter(',')
      ->check(CLI::Range(4, 1024))
      ->check(multiple_of_4);
  app.add_option("--channels", options.channels, "channels of the first level; even")->check(CLI::Range(2, 64));
  app.add_option("--mesh", mesh, "ranks along depth, height and width (default: all ranks along depth)")
      ->expected(1, 3)
      ->delimiter(',')
      ->check(command_line::positive());
  app.add_option("--steps", steps, "steps of gradient descent")->check(CLI::Range(1, 1000));
  app.footer("Exit status: 0; 1 if a result differs from one device by more than 1e-9; 2 for invalid arguments.");
  if (const auto status = launch_flags::parse(app, argc, argv)) return *status;
  std::atomic<bool> equal{true};
  const int status = dtensor::launch(argc, argv, [&](const Communicator& world) {
    if (!run(world, options, mesh, steps)) equal = false;
  });
  return status != 0 ? status : equal ? 0 : 1;
}
