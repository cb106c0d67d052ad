// What a rank's memory goes to in a training step: as fully_shard predicts it, and as it turned out to be.
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
  dtensor::FsdpMemory predicted, measured;  // bytes
  std::int64_t resident_before = 0;         // of this process, at its highest: before training, and after
  std::int64_t resident = 0;
  int ranks_here = 1;                      // in this process
  dtensor::MemoryPoolStats pool = {};      // of this process, after training
  bool sampled = false;                    // whether the last step is followed:
  std::vector<MemorySample> samples = {};  // what it held, operator by operator

  // Of this rank and those that have the other stages of its pipeline; empty without one.
  struct OfRank {
    std::int64_t rank = 0;
    dtensor::FsdpMemory predicted, measured;
  };
  std::vector<OfRank> of_pipeline = {};

  // All but the optimizer's states, which the optimizer tells.
  void predict(const std::vector<dtensor::FsdpUnit>& units, const Options& options);
  // In stages, of which this rank has `own` (a schedule may leave it without any): `units` of each stage.
  void predict_in_stages(const std::vector<std::vector<dtensor::FsdpUnit>>& units, const std::vector<int>& own,
                         const dtensor::pipeline::Schedule& schedule, const Options& options);

  // Follows this rank, on this thread, from here to end(). The parameters are in their places; `counts`: a unit of each
  // schedule of units.
  void begin(const dtensor::NamedTensors& parameters, std::vector<dtensor::FsdpUnit> counts);
  // What is gathered, and gradients that wait for the last piece of a batch.
  void measure_now();
  // Between backward and the optimizer's step, when gradients are all there.
  void measure_parameters();
  void end(const dtensor::DeviceMesh& mesh);  // collective

 private:
  void gather_over(const dtensor::DeviceMesh& mesh);

  std::vector<at::Tensor> parameters_;
  std::vector<dtensor::FsdpUnit> counts_;
  std::shared_ptr<dtensor::EventListener> listener_;
};

}  // namespace train
