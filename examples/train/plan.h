// The plan: where each tensor lives on a mesh (replicate, shard, tp). The whole of what makes the model distributed.
#pragma once

#include <string>
#include <vector>

#include "args.h"
#include "dtensor/fully_shard.h"
#include "dtensor/mesh.h"
#include "dtensor/placement.h"
#include "model.h"

namespace train {

dtensor::DeviceMesh make_mesh(const dtensor::Communicator& world, const MeshShape& shape);

// By the parameter's name. Stored split on `shard` (gathered where used), split on `tp` as tensor parallelism does,
// whole on `replicate`.
dtensor::Placements parameter_placements(const std::string& name, const MeshShape& shape);

// Makes units of the parameters: each block, then the rest.
std::vector<dtensor::FsdpUnit> make_units(Parameters& parameters, const GptConfig& config,
                                          const dtensor::DeviceMesh& mesh, const Options& options);

// ids, targets and, by propagation, every activation between blocks: the batch over replicate and shard.
dtensor::Placements batch_placements();

// Gathers the classes over tp, so that the loss sees whole rows. Without it the loss runs on sharded classes.
LogitsHook gather_classes();

// Activations between the parallel parts split along the sequence over tp (all-gather into them, reduce-scatter out of
// them); blocks computed again in backward.
ModelHooks model_hooks(bool sequence_parallel, bool checkpoint_activations);

}  // namespace train
