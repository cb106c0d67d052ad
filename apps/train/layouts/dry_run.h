// --dry-run: what one rank of the run needs, without starting it.
#pragma once

#include "dtensor/dry_run.h"
#include "dtensor/estimate.h"
#include "train/data/data.h"
#include "train/layouts/memory.h"

namespace CLI {
class App;
}

namespace train {

// The flags of --dry-run and --plan-search, and the check of their combinations, which throws UsageError.
void add_dry_run_flags(CLI::App& app, Options& options);
void check_dry_run(const Options& options);

// The second of two steps of rank 0 without its peers; the first creates the states of the optimizer.
dtensor::DryRunReport dry_run(const Options& options, const Corpus& corpus);

// The same with the trace of the step, for its estimated time. `asynchronous`: collectives run in the background.
dtensor::DryRunReport trace_step(const Options& options, const Corpus& corpus, bool asynchronous);

// The memory that rank 0 of `ranks` will measure, and the ranks of its pipeline.
std::vector<RankMemory> predict_memory(const Options& options, const Corpus& corpus, int ranks);

// Prints the report of the second step, and writes it to `json` (a path; empty: none). Returns the exit status: 1 if
// the peak exceeds `limit` (GB; 0: none).
int print_dry_run(const dtensor::DryRunReport& report, const std::string& json, double limit);

// Writes the Chrome trace of the step and the plot of its memory to these paths (empty: none).
void write_step(const dtensor::DryRunReport& report, const dtensor::HardwareModel& hardware, const std::string& trace,
                const std::string& plot);

// The same for --dry-run.
int report_dry_run(const Options& options, const Corpus& corpus);

}  // namespace train
