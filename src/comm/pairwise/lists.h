// Gathers and reductions of lists; a single tensor is a list of one.
#pragma once

#include "comm/pairwise/collective.h"

namespace dtensor::pairwise {

// outputs: of member 0 all tensors, then of member 1, ...
void gather(const Members& members, Collective& collective, at::TensorList outputs, at::TensorList inputs);

// inputs: what member 0 is to have of the sums, then member 1, ...
void reduce_parts(const Members& members, Collective& collective, const CollectiveCall& call, at::TensorList outputs,
                  at::TensorList inputs);

// In place.
void reduce_whole(const Members& members, Collective& collective, const CollectiveCall& call, at::TensorList tensors);

}  // namespace dtensor::pairwise
