// --dry-run: what one rank of the run needs, without starting it.
#pragma once

#include "data.h"
#include "dtensor/dry_run.h"

namespace train {

// Two steps of rank 0 without its peers: the first creates the states of the optimizer, so the second has the peak.
dtensor::DryRunReport dry_run(Options options, const Corpus& corpus);

// Prints the report, and writes it to --dry-run-json. Returns the exit status: 1 if the peak exceeds --memory-limit.
int report_dry_run(const Options& options, const Corpus& corpus);

}  // namespace train
