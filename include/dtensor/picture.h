// Where a tensor lives, drawn: which ranks of a mesh hold which part of it. No communication; any rank can draw.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "dtensor/export.h"
#include "dtensor/mesh.h"
#include "dtensor/placement.h"

namespace dtensor {

// Rows and columns are the first two sharded dimensions (fewer: leading ones), cells name the ranks that hold them;
// what is sharded beyond them is listed rank by rank. Partial: each rank holds its share of the values.
DTENSOR_API std::string placement_text(at::IntArrayRef sizes, const DeviceMesh& mesh, const Placements& placements);
DTENSOR_API std::string placement_text(const at::Tensor& dtensor);
// The same as a drawing, cells coloured by the set of ranks.
DTENSOR_API std::string placement_svg(at::IntArrayRef sizes, const DeviceMesh& mesh, const Placements& placements);
DTENSOR_API std::string placement_svg(const at::Tensor& dtensor);

}  // namespace dtensor
