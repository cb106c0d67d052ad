// Tensors on a slice of a mesh, described on the full mesh.
#pragma once

#include "dtensor/mesh.h"
#include "dtensor/tensor.h"

namespace dtensor {

// Whether `part` is the sub-mesh of `mesh` through this rank along some of its axes, by their names.
bool is_slice(const DeviceMesh& part, const DeviceMesh& mesh);

// Placements on a slice of `mesh` as placements on `mesh`: Replicate on the axes that the slice lacks.
Placements placements_on_full_mesh(const DTensor& tensor, const DeviceMesh& mesh);

}  // namespace dtensor
