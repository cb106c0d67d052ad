// The random state as operators use it. Contract: every rank of the world calls next_random_key once per random
// operator, whatever its mesh, empty shards included; ranks outside the operator's mesh call it too (the engine does,
// where it runs the operator as a no-op), so that the counter stays one number for the world.
#pragma once

#include "mesh/mesh_impl.h"
#include "random/philox.h"

namespace dtensor {

// The key of the next random operator on this mesh's world; counts it.
RandomKey next_random_key(const MeshImpl& mesh);

}  // namespace dtensor
