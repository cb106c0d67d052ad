// A training step of one stage of a pipeline: microbatches, optimizer. In a dry run, or on thread ranks.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "dtensor/estimate.h"
#include "plan/workload.h"

namespace plan {

// Sequences of a rank in a step.
std::int64_t rank_rows(const Workload& work, const dtensor::ParallelLayout& layout);

// What a rank runs in a step: forward and backward in turn, with so many microbatches in flight.
struct StageRun {
  Part part = {};
  int in_flight = 1, microbatches = 1;
  // Else backward passes after the second that have a successor and fewer microbatches in flight do not run: no memory
  // is higher there, and their time is that of the others.
  bool every_backward = false;
  std::vector<dtensor::pipeline::Action> actions() const;
};

// The second step. Of `options`, the numbers of ranks and the trace are set.
dtensor::DryRunReport run_stage(const Workload& work, const dtensor::ParallelLayout& layout, const StageRun& run,
                                const dtensor::DryRunOptions& options);

// The trace in which data parallelism takes no time: its collectives, but for those on the axes that are listed, and
// the casts and sums of units.
dtensor::StepTrace without_data_parallelism(dtensor::StepTrace trace, const std::set<std::string>& but = {});

// Trains on thread ranks of this process, without pipelines. Seconds of each of `steps` steps after the first one.
std::vector<double> measure_steps(const Workload& work, const dtensor::ParallelLayout& layout, int steps);

// The highest memory of a rank in the second such step.
std::int64_t measure_peak(const Workload& work, const dtensor::ParallelLayout& layout);

}  // namespace plan
