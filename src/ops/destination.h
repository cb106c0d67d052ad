// Where the gradient goes that the running autograd node computes: into a parameter, perhaps through a cast. Lets an
// operator that would build the gradient of a whole table build only the rows that the parameter's shard wants.
#pragma once

#include "placement/spec.h"

namespace dtensor {

// The spec of the leaf behind the running node's first edge; null where there is none, or none that is known.
SpecPtr destination_of_gradient();

}  // namespace dtensor
