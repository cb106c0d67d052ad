// A close lower bound of a layout's time and memory, from dry runs of single blocks.
#pragma once

#include <map>
#include <string>
#include <utility>

#include "dtensor/estimate.h"
#include "plan/workload.h"

namespace plan {

// What a microbatch takes without data parallelism.
struct BlockCost {
  double seconds = 0, head_seconds = 0;  // forward and backward of a block, and of the norm, the head and the loss
  double kept_bytes = 0;                 // activations of a block between its forward and backward
};

// Layouts with equal cp, tp, ep, recomputation and precision share a block, without the optimizer. It runs with so many
// tokens that its rates are the highest; fewer rows take at least their share of that. Replicas, shards and stages only
// add to it.
class BlockCosts {
 public:
  BlockCosts(const Workload& work, const dtensor::HardwareModel& hardware) : work_(work), hardware_(hardware) {}
  // For the rows of one microbatch of this layout. Zero if the block does not run.
  BlockCost of(const dtensor::ParallelLayout& layout);

 private:
  BlockCost measure(const dtensor::ParallelLayout& block, std::int64_t rows) const;

  Workload work_;
  dtensor::HardwareModel hardware_;
  std::map<std::pair<std::string, std::int64_t>, BlockCost> known_;  // by layout and rows
};

}  // namespace plan
