// Marks a call on each rank's own data (FsdpCall), for the engine.
#pragma once

#include "dtensor/mesh.h"

namespace dtensor {

// The value of a ScopedValue while such a call runs: regular tensors are this rank's own, so none is replicated, and an
// operator that gets one beside a parameter of a unit, or another DTensor on `mesh`, is refused.
struct LocalDataCall {
  DeviceMesh mesh;  // of the call's units; none where its module has no parameters of its own
};

}  // namespace dtensor
