// Two programs that save to one folder at once.
#pragma once

#include <string>

namespace dtensor::faults {

struct RivalOptions {
  std::string program;  // this tool, whose subcommand `save` is a rival
  std::string folder;   // emptied
  int trials = 5, ranks = 2;
  std::int64_t rows = 4096;
};

struct RivalReport {
  int trials = 0, both = 0, one = 0, none = 0;  // how many of the two saved
  int damaged = 0;                              // end states that are no one's
  int unclear = 0;                              // losers that did not get the one line
  std::string first_problem = {};
};

RivalReport run_rivals(const RivalOptions& options);

// A rival: saves the state of `step` once. Exit status 0, or 1 with the reason on one line.
int run_rival(const std::string& folder, int ranks, std::int64_t step, std::int64_t rows);

}  // namespace dtensor::faults
