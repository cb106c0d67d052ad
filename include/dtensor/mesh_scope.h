// While it lives, factory functions called on this thread make DTensors.
#pragma once

#include <memory>

#include "dtensor/export.h"
#include "dtensor/mesh.h"
#include "dtensor/placement.h"

namespace dtensor {

// Every tensor that an ATen factory function makes on this thread is born as a DTensor on `mesh` with `placements`
// (empty: Replicate; a Shard dimension that a tensor lacks counts as Replicate). Scopes nest; the innermost counts.
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
