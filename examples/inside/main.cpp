// A few steps of a small network, seen from inside.
//
//   inside --ranks 4 --explain --comms              why operators run as they do, and what a step communicates
//   inside --ranks 2 --loss-scale 4e9               half precision: steps that overflow are skipped, the scale falls
//   inside --ranks 2 --cpu-offload --device cuda    parameters, gradients and states in host memory
//   inside --ranks 2 --debug-rank 1                 rank 1 stops for a debugger first, the others wait
#include <CLI/CLI.hpp>

#include <cstdio>
#include <optional>

#include "dtensor/debug_rank.h"
#include "dtensor/launch.h"
#include "inside.h"

int main(int argc, char** argv) {
  inside::Flags flags;
  std::int64_t ranks = 0;
  bool explains = false, comms = false;
  std::optional<int> stops;
  std::string device = "cpu";
  CLI::App app("Trains a small network and shows what happens inside.");
  app.add_option("--ranks", ranks, "thread ranks of a single process")->check(CLI::Range(1, 1024));
  app.add_option("--steps", flags.steps, "optimizer steps")->check(CLI::Range(1, 1'000'000))->capture_default_str();
  app.add_option("--loss-scale", flags.loss_scale, "compute in half precision, the loss multiplied by this at first")
      ->check(CLI::PositiveNumber);
  app.add_flag("--cpu-offload", flags.cpu_offload, "keep parameters, gradients and states in host memory");
  app.add_option("--device", device, "cpu or cuda")->check(CLI::IsMember({"cpu", "cuda"}))->capture_default_str();
  app.add_flag("--explain", explains, "print candidates, prices and choices of a forward pass");
  app.add_flag("--comms", comms, "print the collectives of the last step by module");
  app.add_option("--debug-rank", stops, "the rank that stops for a debugger while the others wait; -1: each in turn")
      ->check(CLI::Range(-1, 1023));
  CLI11_PARSE(app, argc, argv);
  return dtensor::launch(argc, argv, [&](const dtensor::Communicator& world) {
    if (stops) dtensor::debug_rank(world, *stops);
    const auto report = inside::train(world, device == "cuda" ? at::kCUDA : at::kCPU, flags);
    if (world.rank() != 0) return;
    if (explains) std::printf("%s\n", report.explained.c_str());
    if (comms) std::printf("%s\n", report.communicated.c_str());
    std::printf("loss %.4f -> %.4f in %zu steps, %d of them skipped, scale %g\n", report.losses.front(),
                report.losses.back(), report.losses.size(), report.skipped, report.scale);
  });
}
