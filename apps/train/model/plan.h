// The plan: placements of all tensors on a mesh (replicate, shard, cp, tp). Only this module distributes the model.
#pragma once

#include <vector>

#include "dtensor/fully_shard.h"
#include "dtensor/mesh.h"
#include "dtensor/parallelize.h"
#include "train/args.h"
#include "train/model/model.h"
#include "train/model/stages.h"

namespace train {

// The device of --device.
c10::DeviceType device_type(const Options& options);

// Rank r has the place of rank r + `shift` of the ordinary mesh.
dtensor::DeviceMesh make_mesh(const dtensor::Communicator& world, const MeshShape& shape,
                              c10::DeviceType device = c10::kCPU, int shift = 0);

// What is split over tp: parameters and, with --sequence-parallel, activations between the parallel parts along the
// sequence (all-gather before them, reduce-scatter after them). Without --loss-parallel the output of the head is
// gathered, so that the loss gets full rows.
dtensor::ParallelPlan tensor_parallel_plan(const GptConfig& config, const Options& options);

// Distributes the model: experts on a sparse view of the ranks, the plan over tp, and storage over shard and cp. With
// --parallel fsdp the experts of each block, the block and the rest are units; otherwise parameters are separate.
// Returns the units in the order of their use.
std::vector<dtensor::FsdpUnit> distribute(Gpt& model, const dtensor::DeviceMesh& mesh, const Options& options);

// The same for a model in stages, each on its own mesh: returns the units of each stage.
std::vector<std::vector<dtensor::FsdpUnit>> distribute(const Stages& stages, const Options& options);

// Placements of ids and targets, which propagate to all activations between blocks: the batch over replicate and shard,
// the sequence over cp.
dtensor::Placements batch_placements(const Options& options = {});
// Placements of data about rows of the batch, such as the begins of documents: replicated where the sequence is split.
dtensor::Placements rows_placements();

}  // namespace train
