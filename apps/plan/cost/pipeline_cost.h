// Times of the ranks of a pipeline, from runs of a first, a middle and a last stage.
#pragma once

#include <map>
#include <utility>
#include <vector>

#include "plan/cost/extrapolate.h"
#include "plan/workload.h"

namespace plan {

// What the schedule of a layout says about its ranks. A rank may have several stages.
class Stages {
 public:
  explicit Stages(const dtensor::ParallelLayout& layout);

  const dtensor::pipeline::Schedule& schedule() const { return schedule_; }
  int of_rank() const { return of_rank_; }  // stages of a rank
  bool is_first(int stage) const { return stage == 0; }
  bool is_last(int stage) const { return stage + 1 == schedule_.stages(); }
  std::vector<int> of(std::size_t rank) const;  // in order
  Part part(std::size_t rank, std::int64_t blocks) const;
  // Microbatches whose activations a rank keeps at once, where each of its stages keeps its part of them.
  double in_flight(std::size_t rank) const { return static_cast<double>(live_[rank]) / of_rank_; }
  double most_in_flight() const;
  // Whether weights' gradients are computed by themselves (zero bubble).
  bool splits_backward() const { return schedule_.has(dtensor::pipeline::Action::Kind::backward_input); }

 private:
  dtensor::pipeline::Schedule schedule_;
  std::vector<int> live_;  // activations of stages, by rank
  int of_rank_;
};

// A rank with all of its blocks, and the times of one of its stages.
struct StageKind {
  StageResult rank, stage;
};
// By whether a stage is the first, and whether it is the last.
using StageKinds = std::map<std::pair<bool, bool>, StageKind>;

// With marks of the rank's stages for estimate_pipeline(). Times other than StageResult::time are without the update.
std::vector<dtensor::StepEstimate> rank_times(const StageKinds& kinds, const Stages& stages,
                                              dtensor::StepEstimate StageResult::*time = &StageResult::time);

}  // namespace plan
