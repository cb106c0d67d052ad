// Shampoo takes the same steps on every layout as on one device. Prints the losses of a small regression on one device,
// on each mesh that fits the ranks, and with two wrong implementations as a negative control.
//
//   shampoo                    four thread ranks
//   shampoo --ranks 8
//   mpirun -n 4 shampoo        processes
//
// Exit status: 0; 1 if a layout differs from one device.
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <functional>

#include "dtensor/launch.h"
#include "launch_flags.h"
#include "regression.h"

namespace {

using namespace shampoo;

void print_row(const std::string& name, const std::vector<double>& curve, const std::vector<double>& reference) {
  std::printf("%-28s", name.c_str());
  for (const std::size_t step : {0, 10, 20, 40, 60, 80, 100}) std::printf(" %10.3e", curve.at(step));
  std::printf("   %8.1e\n", deviation(curve, reference));
  std::fflush(stdout);  // A pipe shows each row when it is done.
}

// On a terminal: the name of a run while it trains.
std::vector<double> run_named(const std::string& name, bool shows, const std::function<std::vector<double>()>& run) {
  const bool terminal = shows && isatty(STDERR_FILENO) == 1;
  if (terminal) std::fprintf(stderr, "%s: training", name.c_str());
  auto curve = run();
  if (terminal) std::fputs("\r\033[K", stderr);
  return curve;
}

// Whether every layout is as close to one device as float64 allows. If rounding is amplified (roots of factors without
// full rank), the bound is the difference of one device that sums its batch in another order.
bool compare(const dtensor::Communicator& world, const Experiment& base) {
  const bool shows = world.rank() == 0;
  const auto reference = run_named("one device", shows, [&] { return train_on_one_device(base); });
  const auto show = [&](const std::string& name, const std::function<std::vector<double>()>& run) {
    const auto curve = run_named(name, shows, run);
    if (shows) print_row(name, curve, reference);
    return deviation(curve, reference);
  };
  show("one device", [&] { return reference; });
  double spread = 0;
  for (const std::int64_t pieces : {2, 4, 8}) {
    const auto split = [&] { return train_on_one_device(base, pieces); };
    spread = std::max(spread, show("one device, batch in " + std::to_string(pieces), split));
  }
  const double bound = base.dtype == at::kDouble ? 1e-9 : std::max(1e-5, 5 * spread);
  bool equal = true;
  for (const MeshLayout& layout : layouts(world.size())) {
    const std::string sizes =
        std::to_string(layout.replicate) + "x" + std::to_string(layout.shard) + "x" + std::to_string(layout.tp);
    const double differs = show(layout.name + " " + sizes, [&] { return train(world, layout, base); });
    if (shows && !(differs <= bound)) {
      std::fprintf(stderr, "shampoo: %s: expected a deviation of at most %.1e from one device, got %.1e\n",
                   layout.name.c_str(), bound, differs);
    }
    equal = differs <= bound && equal;
  }
  Experiment wrong = base;
  const MeshLayout sharded{"SHARD", 1, world.size(), 1};
  wrong.method = Method::shard_blocks;
  show("control: blocks of shards", [&] { return train(world, sharded, wrong); });
  wrong.method = Method::first_shard_only;
  show("control: first shard only", [&] { return train(world, sharded, wrong); });
  return equal;
}

bool run(const dtensor::Communicator& world, c10::DeviceType device) {
  const bool shows = world.rank() == 0;
  if (shows) {
    std::printf("%-28s %10s %10s %10s %10s %10s %10s %10s   %8s\n", "loss at step", "0", "10", "20", "40", "60", "80",
                "100", "differs");
  }
  bool equal = true;
  const auto part = [&](const char* title, Experiment e) {
    e.device = device;
    if (shows) std::printf("%s\n", title);
    equal = compare(world, e) && equal;
  };
  part("grafted, roots every 20 steps, float64",
       {.options = rare_roots(), .dtype = at::kDouble, .initialization = Initialization::meta});
  part("grafted, roots every 20 steps, float32", {.options = rare_roots()});
  part("no grafting, roots each step, float32", {.options = no_grafting()});
  return equal;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app(
      "Trains a small regression with distributed Shampoo on one device, on each mesh that fits the ranks (default: 4\n"
      "threads) and with two wrong implementations as a control; prints their losses side by side.",
      "shampoo");
  app.footer("Exit status: 0; 1 if a layout differs from one device; 2 for invalid arguments.");
  std::string device;
  if (const auto status = launch_flags::parse(app, argc, argv, &device)) return *status;
  std::atomic<bool> equal{true};
  const auto once = [&](const dtensor::Communicator& world) {
    if (!run(world, device_flag::of(device, world))) equal = false;
  };
  const int status = dtensor::launch(argc, argv, [&](const dtensor::Communicator& world) {
    world.size() == 1 ? dtensor::run_local(4, once) : once(world);
  });
  return status != 0 ? status : equal ? 0 : 1;
}
