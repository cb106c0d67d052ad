// Parses the command line, trains and prints the requested reports.
#include "program.h"

#include <CLI/CLI.hpp>

#include <cstdio>
#include <optional>

#include "command_line.h"
#include "device_flag.h"
#include "dtensor/debug.h"
#include "dtensor/launch.h"
#include "inside.h"

namespace inside {
namespace {

struct ProgramFlags {
  Flags flags;
  std::int64_t ranks = 0;
  bool explains = false, comms = false;
  std::optional<int> stops;
  std::string device = {};
};

void add_flags(CLI::App& app, ProgramFlags& asked) {
  app.add_option("--ranks", asked.ranks, "thread ranks of a single process")->check(CLI::Range(1, 1024));
  app.add_option("--steps", asked.flags.steps, "optimizer steps")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str();
  app.add_option("--loss-scale", asked.flags.loss_scale, "compute in half precision with this initial loss scale")
      ->check(command_line::positive());
  app.add_flag("--cpu-offload", asked.flags.cpu_offload, "keep parameters, gradients and states in host memory");
  device_flag::add(app, asked.device);
  app.add_flag("--explain", asked.explains, "print candidates, costs and choices of a forward pass");
  app.add_flag("--comms", asked.comms, "print the collectives of the last step by module");
  app.add_option("--debug-rank", asked.stops,
                 "the rank that waits for a debugger while the others wait for it; -1: each in turn")
      ->check(CLI::Range(-1, 1023));
}

void run_rank(const dtensor::Communicator& world, const ProgramFlags& asked) {
  if (asked.stops) dtensor::debug_rank(world, *asked.stops);
  const auto report = train(world, device_flag::of(asked.device, world), asked.flags);
  if (world.rank() != 0) return;
  if (asked.explains) std::printf("%s\n", report.explanation.c_str());
  if (asked.comms) std::printf("%s\n", report.comm_table.c_str());
  std::printf("loss %.4f -> %.4f in %zu steps, %d of them skipped, scale %g\n", report.losses.front(),
              report.losses.back(), report.losses.size(), report.skipped, report.scale);
}

}  // namespace

int run_program(int argc, char** argv) {
  ProgramFlags asked;
  CLI::App app("Trains a small network and shows what happens inside.", "inside");
  add_flags(app, asked);
  app.failure_message(command_line::failure_message);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? dtensor::finish_output(0) : 2;
  }
  return dtensor::launch(argc, argv, [&](const dtensor::Communicator& world) { run_rank(world, asked); });
}

}  // namespace inside
