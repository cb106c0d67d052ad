// The plan: where each tensor lives on a mesh (replicate, shard, cp, tp). The whole of what makes the model
// distributed.
#pragma once

#include <vector>

#include "args.h"
#include "dtensor/fully_shard.h"
#include "dtensor/mesh.h"
#include "dtensor/parallelize.h"
#include "model.h"
#include "stages.h"

namespace train {

// Of --device.
c10::DeviceType device_type(const Options& options);

dtensor::DeviceMesh make_mesh(const dtensor::Communicator& world, const MeshShape& shape,
                              c10::DeviceType device = c10::kCPU);

// What is split over tp: parameters, and with --sequence-parallel the activations between the parallel parts, along the
// sequence (all-gather into them, reduce-scatter out of them). Without --loss-parallel the head's output is gathered,
// so that the loss sees whole rows.
dtensor::ParallelPlan tensor_parallel_plan(const Options& options);

// Puts the model on the mesh: experts on a sparse view of its ranks; the plan over tp; over shard and cp, the experts
// of each block, the block and then the rest as a unit (--parallel fsdp), or each parameter by itself. Returns the
// units in the order of their use.
std::vector<dtensor::FsdpUnit> distribute(Gpt& model, const dtensor::DeviceMesh& mesh, const Options& options);

// The same of a model in stages, each on the mesh of its own: the units of each stage.
std::vector<std::vector<dtensor::FsdpUnit>> distribute(const Stages& stages, const Options& options);

// ids, targets and, by propagation, every activation between blocks: the batch over replicate and shard,
// the sequence over cp.
dtensor::Placements batch_placements(const Options& options = {});
// What says something of a row of the batch, whole where the sequence is split: where its documents begin.
dtensor::Placements rows_placements();

}  // namespace train
