// --plan-search: the fastest layout of the run on given hardware; --plan: a run in a layout that was found.
#pragma once

#include "dtensor/estimate.h"
#include "train/data/data.h"

namespace train {

// The options of a run in this layout: mesh, parts of a batch, recomputation and precision.
Options with_layout(Options options, const dtensor::ParallelLayout& layout);

// The estimated time of a traced step (trace_step) with what it is spent on, and the peak of memory over the ranks.
dtensor::LayoutCost cost_of(const dtensor::DryRunReport& report, const Options& options,
                            const dtensor::HardwareModel& hardware);

// The estimated time of the second step of rank 0, and its peak memory.
dtensor::LayoutCost estimate_layout(const Options& options, const Corpus& corpus,
                                    const dtensor::HardwareModel& hardware);

// Ranks the layouts of --ranks ranks (default: as many as --mesh) by their estimated time.
dtensor::LayoutPlan search(const Options& options, const Corpus& corpus, const dtensor::HardwareModel& hardware);

// Prints the ranking, and writes the fastest layout to --plan-out. Returns the exit status: 1 if no layout fits.
int report_search(const Options& options, const Corpus& corpus);

// The options with the layout of --plan.
Options with_plan(Options options);

}  // namespace train
