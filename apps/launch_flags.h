// Launch flags for examples with few other flags.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>

#include "command_line.h"
#include "device_flag.h"
#include "dtensor/launch.h"

namespace launch_flags {

// Adds the flags that dtensor::launch() reads (and --device if `device` is given), and parses the command line. Returns
// nothing if the program should continue; otherwise its exit status: 0 after --help, 2 for an invalid argument.
inline std::optional<int> parse(CLI::App& app, int argc, char** argv, std::string* device = nullptr) {
  int ranks = 0;
  std::string backend;
  app.add_option("--ranks", ranks, "thread ranks of a single process")->check(CLI::Range(1, 4096));
  app.add_option("--backend", backend, "the communication backend (default: detected from the launcher)")
      ->check(CLI::IsMember({"local", "mpi", "nccl", "socket"}));
  if (device != nullptr) device_flag::add(app, *device);
  app.failure_message(command_line::failure_message);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? dtensor::finish_output(0) : 2;
  }
  return std::nullopt;
}

}  // namespace launch_flags
