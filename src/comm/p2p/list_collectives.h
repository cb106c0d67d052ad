// Collectives; gathers and reductions of lists, where a single tensor is a list of one.
#pragma once

#include "comm/p2p/collective.h"

namespace dtensor::p2p {

// `outputs` has all tensors of member 0, then those of member 1, ...
void gather(const ProcessGroup& members, Collective& collective, at::TensorList outputs, at::TensorList inputs);

// `inputs` has the tensors for member 0, then those for member 1, ...
void reduce_scatter_lists(const ProcessGroup& members, Collective& collective, const CollectiveCall& call,
                          at::TensorList outputs, at::TensorList inputs);

// Reduces in place.
void all_reduce_list_in_place(const ProcessGroup& members, Collective& collective, const CollectiveCall& call,
                              at::TensorList tensors);

// One tensor for and of each member.
void all_to_all(const ProcessGroup& members, Collective& collective, at::TensorList outputs, at::TensorList inputs);

void broadcast(const ProcessGroup& members, Collective& collective, int root, const at::Tensor& tensor);

}  // namespace dtensor::p2p
