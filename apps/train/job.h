// A run's model on its mesh, and forward and backward of a batch.
#pragma once

#include <string>
#include <vector>

#include "args.h"
#include "dtensor/fully_shard.h"
#include "train/data/data.h"
#include "train/layouts/memory.h"
#include "train/model/model.h"
#include "train/model/stages.h"
#include "train/plots/load.h"

namespace train {

struct Job {
  const Options& options;
  const Corpus& corpus;
  Gpt& model;
  dtensor::DeviceMesh batch_mesh = {};         // Empty: the batch is not distributed.
  std::vector<std::int64_t> pieces = {};       // Their rows.
  dtensor::DeviceMesh mesh = {};               // Empty: one device, which neither loads nor saves.
  MemoryUse* memory = nullptr;                 // Null: not measured.
  Stages* stages = nullptr;                    // Null: no pipeline.
  std::vector<dtensor::FsdpUnit> counts = {};  // One unit of each schedule on this rank, for its statistics.
  LoadCount* load = nullptr;                   // Null: not counted.
};

// Of all ranks of the run; empty on one device.
inline dtensor::Communicator world_of(const Job& job) { return job.mesh ? job.mesh.world() : dtensor::Communicator(); }
// The mesh whose random numbers a step draws; empty on one device.
inline dtensor::DeviceMesh mesh_of_draws(const Job& job) { return job.mesh ? job.mesh : job.batch_mesh; }

// If `count` does not divide `rows`, the first parts have one row more.
std::vector<std::int64_t> equal_parts(std::int64_t rows, std::int64_t count);

// The model on the meta device: each rank allocates its own parameters only, and values are those of any mesh.
GptConfig meta_config(const Options& options);

// Forward and backward of a batch in its pieces. Returns its mean loss.
at::Tensor run_batch(const Job& job, const Batch& batch);

}  // namespace train
