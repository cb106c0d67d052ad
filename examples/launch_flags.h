// The flags by which every example is started, for those that have few of their own.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>

#include "dtensor/launch.h"

namespace launch_flags {

// Adds what dtensor::launch() reads by itself, and parses. Nothing where the program goes on, else its exit status:
// 0 after --help, 2 for a mistake.
inline std::optional<int> parse(CLI::App& app, int argc, char** argv) {
  int ranks = 0;
  std::string backend;
  app.add_option("--ranks", ranks, "thread ranks of a single process")->check(CLI::Range(1, 4096));
  app.add_option("--backend", backend, "who moves the bytes (default: by how the program was started)")
      ->check(CLI::IsMember({"local", "mpi", "nccl", "socket"}));
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? dtensor::finish_output(0) : 2;
  }
  return std::nullopt;
}

}  // namespace launch_flags
