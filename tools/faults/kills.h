// Runs that are killed without warning, again and again, and taken up each time from what they left.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "faults/job.h"

namespace dtensor::faults {

struct KillOptions {
  std::string program;  // this tool, whose subcommand `run` is the victim
  std::string folder;   // emptied
  int trials = 10, ranks = 2;
  std::int64_t keep = 2;  // 0: one checkpoint, replaced
  std::int64_t rows = 4096;
  std::uint64_t seed = 0;
  // Between processes most trials kill one of them and watch the others, some the launcher, some all at once.
  Backend backend = Backend::threads;
};

struct KillReport {
  int trials = 0;
  std::array<int, 6> at = {};          // what the victim was at when it was killed (victim.h)
  std::int64_t at_last = 0;            // in the last trial
  int one = 0, launcher = 0, all = 0;  // what was killed
  int reported = 0;                    // a rank that was left said which one was missing and what it waited in
  int late = 0;                        // what was left was there for more than 5 s
  double slowest = 0;                  // seconds until the last process was gone
  int lost = 0;                        // less was there than a save had returned for
  int wrong = 0;                       // what was loaded is not that of its step
  int hung = 0;
  int unclear = 0;  // nobody said which rank was missing
  std::int64_t last_step = 0;
  std::string first_problem = {};
  bool good() const { return lost + wrong + hung + unclear == 0; }
};

KillReport run_kills(const KillOptions& options);

}  // namespace dtensor::faults
