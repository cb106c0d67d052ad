// The random state as operators use it. Every rank of the world must call next_random_key once per random operator,
// including ranks with empty shards. For ranks outside the operator's mesh the operator kernel calls it too, so that
// all ranks have the same counter.
#pragma once

#include "mesh/mesh_impl.h"
#include "random/philox.h"

namespace dtensor {

// Returns the key of the next random operator on this mesh's world and increments the counter.
RandomKey next_random_key(const MeshImpl& mesh);

}  // namespace dtensor
