// A scope in which factory functions on this thread create DTensors.
#pragma once

#include <memory>

#include "dtensor/export.h"
#include "dtensor/mesh.h"
#include "dtensor/placement.h"

namespace dtensor {

// Every tensor that an ATen factory function creates on this thread is a DTensor on `mesh` with `placements` (empty:
// Replicate; a Shard of a dimension that the tensor lacks becomes Replicate). Scopes nest; the innermost applies.
class DTENSOR_API MeshScope {
 public:
  explicit MeshScope(DeviceMesh mesh, Placements placements = {});
  ~MeshScope();
  MeshScope(const MeshScope&) = delete;
  MeshScope& operator=(const MeshScope&) = delete;

 private:
  std::shared_ptr<const void> scope_;
};

}  // namespace dtensor
