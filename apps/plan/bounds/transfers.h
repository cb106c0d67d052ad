// Time of the gathers and reductions of blocks, at least: for bounds.
#pragma once

#include "plan/bounds/block_cost.h"
#include "plan/cost/model_size.h"

namespace plan {

// What a rank computes in a step.
struct RankCompute {
  std::int64_t blocks = 1, stages = 1;
  double seconds = 0;
};

class Transfers {
 public:
  Transfers(const ModelSize& block, const dtensor::HardwareModel& hardware) : block_(block), hardware_(hardware) {}
  // The time of a rank's step with them. Those of experts and of other parameters run beside each other, and beside
  // what computes, if links allow it.
  double with_compute(const dtensor::ParallelLayout& layout, const RankCompute& rank, const BlockCost& block) const;

 private:
  // Seconds of the collectives of one block.
  struct OfBlock {
    double gather = 0, reduction = 0;
  };
  OfBlock of_block(const dtensor::ParallelLayout& layout, double parameters, std::int64_t ranks,
                   std::int64_t stride) const;

  ModelSize block_;
  dtensor::HardwareModel hardware_;
};

}  // namespace plan
