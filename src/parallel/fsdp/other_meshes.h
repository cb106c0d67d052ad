// Parameters that are on another mesh than the others of a unit, such as experts.
#pragma once

#include <utility>
#include <vector>

#include "dtensor/fully_shard.h"

namespace dtensor::fsdp {

using OnMesh = std::pair<DeviceMesh, NamedTensors>;

// Experts are on other arrangements of these ranks, or each on some of the ranks so that all ranks have equally many.
// Parameters that are on some ranks for another reason are an error, because their gradients would not be summed over
// the other ranks.
std::vector<OnMesh> find_on_other_meshes(const NamedTensors& parameters, const DeviceMesh& mesh);

// Each group gets a unit of its own, before the other parameters.
void shard_on_other_meshes(const std::vector<OnMesh>& groups, const FsdpOptions& options);

// Whether a group has the tensor.
bool holds(const std::vector<OnMesh>& groups, const at::Tensor& tensor);

}  // namespace dtensor::fsdp
