// Time and memory of a stage with many blocks, from runs of the same stage with few blocks.
#pragma once

#include "dtensor/estimate.h"

namespace plan {

// One stage: its time, the moment of its highest memory, and the events that lead there.
struct StageResult {
  dtensor::StepEstimate time;
  // Without the communication of data parallelism; with that of experts only.
  dtensor::StepEstimate compute, compute_and_experts;
  double weights = 0;                 // seconds of products for gradients of weights in a backward pass
  dtensor::MemoryByKind memory = {};  // at the peak
  dtensor::StepTrace trace = {};      // with the memory at each event
  double peak() const;
};

// The stage with `blocks` more blocks than `few`, where `more` has one more.
//
// Each number of a stage is linear in its blocks, except for the peak: the moment of the peak may change. So each
// moment is extrapolated by itself. A forward, a backward and the update have the same events in both runs but for
// those of one block in their middle. Moments before it are counted from the start, those after it from the end.
// Moments of the blocks between lie between those of the first and of the last block, so their memory does, too.
StageResult extrapolate(const StageResult& few, const StageResult& more, double blocks);
// Times only.
StageResult extrapolate_times(const StageResult& few, const StageResult& more, double blocks);

}  // namespace plan
