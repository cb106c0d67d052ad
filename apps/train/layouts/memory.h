// Memory of a rank in a training step, by what it is used for, as measured.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "dtensor/comm.h"
#include "dtensor/events.h"
#include "dtensor/fully_shard.h"
#include "dtensor/mesh.h"
#include "train/plots/memory_plot.h"

namespace train {

// Highest bytes of a rank.
struct RankMemory {
  std::int64_t rank = 0;
  std::int64_t parameters = 0, gradients = 0, optimizer = 0;  // Shards.
  std::int64_t gathered = 0;                                  // Gathered copies of parameters.
  std::int64_t unreduced = 0;                                 // Gradients that wait for their reduction.
  std::int64_t total() const { return parameters + gradients + optimizer + gathered + unreduced; }
  friend bool operator==(const RankMemory&, const RankMemory&) = default;
};

struct MemoryUse {
  RankMemory measured;
  std::vector<RankMemory> predicted = {};    // As ranks(); empty if it is not requested.
  std::vector<RankMemory> of_pipeline = {};  // Of the ranks of this rank's pipeline; empty without a pipeline.
  std::int64_t resident_before = 0;          // Peak of this process before and after training.
  std::int64_t resident = 0;
  int ranks_here = 1;                      // In this process.
  dtensor::MemoryPoolStats pool = {};      // Of this process, after training.
  bool sampled = false;                    // Whether to sample the last step.
  std::vector<MemorySample> samples = {};  // Memory at each operator of the last step.

  // of_pipeline, or this rank alone.
  std::vector<RankMemory> ranks() const { return of_pipeline.empty() ? std::vector{measured} : of_pipeline; }

  // Measures this rank, on this thread, until end(). The parameters are distributed; `counts` has one unit of each
  // schedule of units.
  void begin(const dtensor::NamedTensors& parameters, std::vector<dtensor::FsdpUnit> counts);
  // Measures gathered bytes, and gradients that are unreduced until the last part of a batch.
  void measure_now();
  // Called between backward and the optimizer step, when all gradients exist.
  void measure_parameters();
  void end(const dtensor::DeviceMesh& mesh);  // Collective.

 private:
  void gather_over(const dtensor::DeviceMesh& mesh);

  std::vector<at::Tensor> parameters_;
  std::vector<dtensor::FsdpUnit> counts_;
  std::shared_ptr<dtensor::EventListener> listener_;
};

}  // namespace train
