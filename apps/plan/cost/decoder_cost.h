// Time and memory of a decoder's training step in a layout, by dry runs of its pipeline stages.
#pragma once

#include "dtensor/estimate.h"
#include "plan/workload.h"

namespace plan {

// Parameters of the model: all, those of the experts, and the weights that a token is multiplied with.
struct ModelSize {
  double parameters = 0, expert_parameters = 0, active_weights = 0;
  // FLOPs of forward and backward for a token: 6 for each active weight and 12 L d S of attention (PaLM, Chowdhery et
  // al. 2022, appendix B), or 6 L d S if each pair of tokens counts once (causal).
  double flops_per_token = 0, causal_flops_per_token = 0;
};
ModelSize size_of(const Workload& work);

// What a search needs about a decoder on this hardware. Stages with many blocks are extrapolated from runs of 4 and 5
// blocks; with `exact` all blocks and all microbatches run.
dtensor::PlannedProgram planned_decoder(const Workload& work, const dtensor::HardwareModel& hardware,
                                        bool exact = false);

// Model FLOPs utilization: the share of the hardware's peak FLOPs.
double utilization(double flops_per_token, const Workload& work, const dtensor::ParallelLayout& layout,
                   const dtensor::HardwareModel& hardware, double seconds);

}  // namespace plan
