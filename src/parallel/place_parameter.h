// Changes the placement of parameters on one axis of a mesh; the other axes keep theirs.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "dtensor/nn.h"

namespace dtensor {

// The placement on the axis; without a value: Replicate, unless another name of a tied tensor has one. Names of a tied
// tensor must agree.
using AxisPlacementFunction = std::function<std::optional<Placement>(const std::string& name)>;
void place_parameters(const NamedTensors& parameters, const DeviceMesh& mesh, std::int64_t axis,
                      const AxisPlacementFunction& place);

}  // namespace dtensor
