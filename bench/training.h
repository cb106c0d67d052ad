// Flags and JSON output of the benchmarks of training steps.
#pragma once

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "timing.h"
#include "train/args.h"

namespace bench {

struct Training {
  std::vector<std::string> modes;
  std::int64_t warmup = 5;
  int ranks = 2;
};

inline void add_training_flags(CLI::App& app, Training& training, train::Options& job) {
  job.batch = 8, job.seq = 16, job.steps = 20, job.warmup = 0;
  app.add_option("--mode", training.modes, "some of " + CLI::detail::join(training.modes))->delimiter(',');
  app.add_option("--hidden", job.hidden, "hidden size of the model (and of an expert)");
  app.add_option("--batch", job.batch, "sequences in a step, over all ranks");
  app.add_option("--seq", job.seq, "tokens a sequence");
  app.add_option("--steps", job.steps, "measured steps");
  app.add_option("--warmup", training.warmup, "steps before");
  app.add_option("--ranks", training.ranks, "thread ranks of a single process");
}

// `ms`: of each step, including those before the measured ones. Prints one line that includes the fields of `more`.
// Returns the median.
inline double print_training(const Training& training, const train::Options& job, const std::string& mode,
                             const char* backend, int ranks, std::vector<double> ms, const nlohmann::json& more) {
  ms.erase(ms.begin(), ms.begin() + training.warmup);
  const double median = bench::median(ms);
  nlohmann::json line = {{"bench", "train"},
                         {"mode", mode},
                         {"backend", backend},
                         {"ranks", ranks},
                         {"hidden", job.hidden},
                         {"ms_median", median},
                         {"ms_min", *std::min_element(ms.begin(), ms.end())},
                         {"tokens_per_s", static_cast<double>(job.batch * job.seq) / median * 1e3}};
  line.update(more);
  std::cout << line.dump() << std::endl;
  return median;
}

}  // namespace bench
