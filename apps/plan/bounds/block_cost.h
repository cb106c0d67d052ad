// A close lower bound of a layout's time and memory, from dry runs of single blocks.
#pragma once

#include <limits>
#include <map>
#include <string>
#include <tuple>
#include <utility>

#include "dtensor/estimate.h"
#include "plan/workload.h"

namespace plan {

constexpr double kHidden = std::numeric_limits<double>::infinity();

// What a microbatch takes without the communication of data parallelism.
struct BlockCost {
  double seconds = 0, head_seconds = 0;  // forward and backward of a block, and of the norm, the head and the loss
  double kept_bytes = 0;                 // activations of a block between its forward and backward
  // Windows: from the start of a collective of the block's experts to the wait for it. What takes longer is exposed.
  double forward_gather = kHidden, backward_gather = kHidden, reduction = kHidden;
  double reduction_and_gather = kHidden;  // of a reduction and of the gather that follows it
};

// Layouts with equal cp, tp, ep, recomputation and precision share a block, without the optimizer. Its runs with two
// numbers of rows tell those with any. Replicas, shards and stages only add to it.
class BlockCosts {
 public:
  BlockCosts(const Workload& work, const dtensor::HardwareModel& hardware) : work_(work), hardware_(hardware) {}
  // For the rows of one microbatch of this layout. Zero if the block does not run.
  const BlockCost& of(const dtensor::ParallelLayout& layout);

 private:
  // The step of so many rows.
  const dtensor::StepTrace& run(const dtensor::ParallelLayout& block, const Part& part, std::int64_t rows);
  dtensor::StepTrace trace(const dtensor::ParallelLayout& block, const Part& part, std::int64_t rows);
  BlockCost measure(const dtensor::ParallelLayout& layout, std::int64_t rows);

  Workload work_;
  dtensor::HardwareModel hardware_;
  using RunKey = std::tuple<std::string, std::int64_t, bool, std::int64_t>;  // layout, blocks, head, rows
  std::map<RunKey, dtensor::StepTrace> runs_;
  std::map<std::pair<std::string, std::int64_t>, BlockCost> known_;  // by layout and rows
};

}  // namespace plan
