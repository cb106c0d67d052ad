// Marks a call with local semantics (FsdpCall) for the operator kernel.
#pragma once

#include <memory>
#include <vector>

#include "dtensor/mesh.h"

namespace dtensor {

// Value of a ScopedValue during a call with local semantics. Regular tensors differ between ranks, so none is
// replicated. An operator throws if it gets one together with a unit's parameter or another DTensor on `mesh`.
struct LocalDataCall {
  DeviceMesh mesh;  // of the call's units; empty if the module has no parameters of its own
  // The meshes of DTensors of which to_local() returned shards. What is computed with them differs between their ranks.
  std::shared_ptr<std::vector<DeviceMesh>> sharded = std::make_shared<std::vector<DeviceMesh>>();
};

}  // namespace dtensor
