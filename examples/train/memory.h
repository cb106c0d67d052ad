// Memory of a rank in a training step, by kind: as fully_shard predicts it, and as measured.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "args.h"
#include "dtensor/comm.h"
#include "dtensor/events.h"
#include "dtensor/fully_shard.h"
#include "dtensor/mesh.h"
#include "dtensor/pipeline_schedule.h"
#include "memory_plot.h"

namespace train {

struct MemoryUse {
  dtensor::FsdpMemory predicted, measured;  // Bytes.
  std::int64_t resident_before = 0;         // Peak of this process before and after training.
  std::int64_t resident = 0;
  int ranks_here = 1;                      // In this process.
  dtensor::MemoryPoolStats pool = {};      // Of this process, after training.
  bool sampled = false;                    // Whether to sample the last step.
  std::vector<MemorySample> samples = {};  // Memory at each operator of the last step.

  // Of this rank and of the other ranks of its pipeline; empty without a pipeline.
  struct OfRank {
    std::int64_t rank = 0;
    dtensor::FsdpMemory predicted, measured;
  };
  std::vector<OfRank> of_pipeline = {};

  // Predicts everything except optimizer states, which the optimizer reports.
  void predict(const std::vector<dtensor::FsdpUnit>& units, const Options& options);
  // With stages: `units` of each stage, of which this rank has the stages `own` (possibly none).
  void predict_in_stages(const std::vector<std::vector<dtensor::FsdpUnit>>& units, const std::vector<int>& own,
                         const dtensor::pipeline::Schedule& schedule, const Options& options);

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
