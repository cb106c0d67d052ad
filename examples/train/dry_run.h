// --dry-run: what one rank of the run needs, without starting it.
#pragma once

#include "data.h"
#include "dtensor/dry_run.h"
#include "dtensor/fully_shard.h"

namespace train {

// The second of two steps of rank 0 without its peers; the first creates the states of the optimizer.
dtensor::DryRunReport dry_run(const Options& options, const Corpus& corpus);

// The same with the trace of the step, for its estimated time. `asynchronous`: collectives run in the background.
dtensor::DryRunReport trace_step(const Options& options, const Corpus& corpus, bool asynchronous);

// The memory that rank 0 of `ranks` will measure, by what it is used for; not for pipelines.
dtensor::FsdpMemory predict_memory(const Options& options, const Corpus& corpus, int ranks);

// Prints the report, and writes it to --dry-run-json. Returns the exit status: 1 if the peak exceeds --memory-limit.
int report_dry_run(const Options& options, const Corpus& corpus);

}  // namespace train
