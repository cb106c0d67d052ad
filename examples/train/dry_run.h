// --dry-run: what one rank of the run needs, without starting it.
#pragma once

#include "data.h"
#include "dtensor/dry_run.h"
#include "memory.h"

namespace train {

// The second of two steps of rank 0 without its peers; the first creates the states of the optimizer.
dtensor::DryRunReport dry_run(const Options& options, const Corpus& corpus);

// The same with the trace of the step, for its estimated time. `asynchronous`: collectives run in the background.
dtensor::DryRunReport trace_step(const Options& options, const Corpus& corpus, bool asynchronous);

// The memory that rank 0 of `ranks` will measure, and the ranks of its pipeline.
std::vector<RankMemory> predict_memory(const Options& options, const Corpus& corpus, int ranks);

// Prints the report of the second step, and writes it to `json` (a path; empty: none). Returns the exit status: 1 if
// the peak exceeds `limit` (GB; 0: none).
int print_dry_run(const dtensor::DryRunReport& report, const std::string& json, double limit);

// The same for --dry-run.
int report_dry_run(const Options& options, const Corpus& corpus);

}  // namespace train
