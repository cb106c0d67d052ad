// Puts parameters on one axis of a mesh, whatever they are on the others.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "dtensor/nn.h"

namespace dtensor {

// The placement on the axis; none: whole unless the tensor has another name that says more. Tied tensors must agree.
using AxisPlacementFunction = std::function<std::optional<Placement>(const std::string& name)>;
void place_parameters(const NamedTensors& parameters, const DeviceMesh& mesh, std::int64_t axis,
                      const AxisPlacementFunction& place);

}  // namespace dtensor
