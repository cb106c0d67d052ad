// Two programs that save to one folder at the same time.
#pragma once

#include <string>

namespace dtensor::faults {

struct RivalOptions {
  std::string program;  // This tool; its subcommand `save` is one of the two programs.
  std::string folder;   // Its content is removed.
  int trials = 5, ranks = 2;
  std::int64_t rows = 4096;
};

struct RivalReport {
  int trials = 0, both = 0, one = 0, none = 0;  // How many of the two saved.
  int damaged = 0;                              // Final checkpoints of neither program.
  int unclear = 0;                              // Failed programs without the expected error line.
  std::string first_problem = {};
};

RivalReport run_rivals(const RivalOptions& options);

// One of the two programs: saves the state of `step` once. Exit status 0, or 1 with the reason in one line.
int run_rival(const std::string& folder, int ranks, std::int64_t step, std::int64_t rows);

}  // namespace dtensor::faults
