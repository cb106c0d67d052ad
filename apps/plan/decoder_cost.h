// Time and memory of a decoder's training step in a layout, by dry runs of its pipeline stages.
#pragma once

#include "dtensor/estimate.h"
#include "plan/cost/model_size.h"
#include "plan/workload.h"

namespace plan {

// What a search needs about a decoder on this hardware. Stages with many blocks are extrapolated from runs of 4 and 5
// blocks; with `exact` all blocks and all microbatches run.
dtensor::PlannedProgram planned_decoder(const Workload& work, const dtensor::HardwareModel& hardware,
                                        bool exact = false);

}  // namespace plan
