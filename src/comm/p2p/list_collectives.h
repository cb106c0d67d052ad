// Gathers and reductions of lists; a single tensor is a list of one.
#pragma once

#include "comm/p2p/collective.h"

namespace dtensor::p2p {

// outputs: of member 0 all tensors, then of member 1, ...
void gather(const ProcessGroup& members, Collective& collective, at::TensorList outputs, at::TensorList inputs);

// inputs: what member 0 is to have of the sums, then member 1, ...
void reduce_scatter_lists(const ProcessGroup& members, Collective& collective, const CollectiveCall& call,
                          at::TensorList outputs, at::TensorList inputs);

// In place.
void all_reduce_list_in_place(const ProcessGroup& members, Collective& collective, const CollectiveCall& call,
                              at::TensorList tensors);

}  // namespace dtensor::p2p
