// Parameters and FLOPs of a decoder.
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
// One block. Stages have blocks as the last one.
ModelSize size_of_block(Workload work);

// Model FLOPs utilization: the share of the hardware's peak FLOPs.
double utilization(double flops_per_token, const Workload& work, const dtensor::ParallelLayout& layout,
                   const dtensor::HardwareModel& hardware, double seconds);

}  // namespace plan
