// Fresh parameters: the same global values on every mesh, each rank making only its own part.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>

#include "args.h"
#include "dtensor/mesh.h"
#include "model.h"

namespace train {

c10::ScalarType scalar_type(Dtype dtype);

// Seeds the mesh's random numbers (dropout's too) and makes the model's parameters as DTensors by the plan.
Parameters make_parameters(const GptConfig& config, const dtensor::DeviceMesh& mesh, const MeshShape& shape,
                           Dtype dtype, std::uint64_t seed);

// The same values as plain tensors, for a run without any mesh.
Parameters to_plain(const Parameters& parameters);

}  // namespace train
