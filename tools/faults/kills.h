// Runs that are killed repeatedly, and each time resumed from the remaining checkpoint.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "faults/job.h"

namespace dtensor::faults {

struct KillOptions {
  std::string program;  // This tool; its subcommand `run` is the victim.
  std::string folder;   // Its content is removed.
  int trials = 10, ranks = 2;
  std::int64_t keep = 2;  // 0: one checkpoint, which is replaced.
  std::int64_t rows = 4096;
  std::uint64_t seed = 0;
  // With processes, most trials kill one of them and watch the others; some kill the launcher, and some all processes.
  Backend backend = Backend::threads;
};

struct KillReport {
  int trials = 0;
  std::array<int, 6> at = {};          // Phase of the victim when it was killed (victim.h).
  std::int64_t at_last = 0;            // In the last trial.
  int one = 0, launcher = 0, all = 0;  // What was killed.
  int reported = 0;    // A surviving rank reported which rank is missing and in which collective it waited.
  int late = 0;        // Surviving processes ran for more than 5 s.
  double slowest = 0;  // Seconds until the last process had ended.
  int lost = 0;        // The checkpoint is older than a completed save.
  int wrong = 0;       // The loaded state is not that of its step.
  int hung = 0;
  int unclear = 0;  // No rank reported which rank is missing.
  std::int64_t last_step = 0;
  std::string first_problem = {};
  bool good() const { return lost + wrong + hung + unclear == 0; }
};

KillReport run_kills(const KillOptions& options);

}  // namespace dtensor::faults
