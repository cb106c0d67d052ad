// Runs that are killed without warning, again and again, and taken up each time from what they left.
#pragma once

#include <cstdint>
#include <string>

namespace dtensor::faults {

struct KillOptions {
  std::string program;  // this tool, whose subcommand `run` is the victim
  std::string folder;   // emptied
  int trials = 10, ranks = 2;
  std::int64_t keep = 2;  // 0: one checkpoint, replaced
  std::int64_t rows = 4096;
  std::uint64_t seed = 0;
};

struct KillReport {
  int trials = 0, starting = 0, loading = 0, saving = 0, stepping = 0;  // what the victim was at when it was killed
  int lost = 0;                                                         // less was there than a save had returned for
  int wrong = 0;                                                        // what was loaded is not that of its step
  int hung = 0;
  std::int64_t last_step = 0;
  std::string first_problem = {};
  bool good() const { return lost + wrong + hung == 0; }
};

KillReport run_kills(const KillOptions& options);

// The victim: takes up what is there, checks it, and saves after every step, in the background at each second one,
// until it is killed. What it is at, and the last step that a save has returned for, stand in the file FOLDER.progress.
int run_victim(const std::string& folder, int ranks, std::int64_t keep, std::int64_t rows);

}  // namespace dtensor::faults
