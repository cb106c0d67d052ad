// Slices are compared by axis names.
#include "parallel/mesh_slice.h"

#include <algorithm>

namespace dtensor {

bool is_slice(const DeviceMesh& part, const DeviceMesh& mesh) {
  if (part.names().empty()) return false;
  const auto& known = mesh.names();
  for (const auto& name : part.names()) {
    if (std::find(known.begin(), known.end(), name) == known.end()) return false;
  }
  return mesh[part.names()] == part;
}

Placements placements_on_full_mesh(const DTensor& tensor, const DeviceMesh& mesh) {
  const DeviceMesh slice = tensor.mesh();
  Placements placements(static_cast<std::size_t>(mesh.ndim()));
  for (std::size_t axis = 0; axis < slice.names().size(); ++axis) {
    placements[static_cast<std::size_t>(mesh.dim(slice.names()[axis]))] = tensor.placements()[axis];
  }
  return placements;
}

}  // namespace dtensor
