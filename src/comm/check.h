// Checks of a collective's arguments that need no other rank.
#pragma once

#include "dtensor/comm_backend.h"

namespace dtensor {

// Each throws c10::Error with the values that it objects to. `call` gives the kind and dtype.
void check_tensors(const CommBackend& backend, const CollectiveCall& call, at::TensorList outputs,
                   at::TensorList inputs);
// No two of them have memory in common.
void check_disjoint(const CollectiveCall& call, at::TensorList outputs);
// Of lists: `all` has the tensors of `one` for each member. An input may be this member's own output of a gather.
void check_apart(const CommBackend& backend, const CollectiveCall& call, at::TensorList all, at::TensorList one);
void check_list(const CommBackend& backend, const CollectiveCall& call, at::TensorList list, const char* what);
void check_same_sizes(const CollectiveCall& call, const at::Tensor& mine_out, const at::Tensor& mine_in);
void check_peer(const CommBackend& backend, const CollectiveCall& call);
// The other end and the tag of a send or recv.
void check_message(const CommBackend& backend, const CollectiveCall& call);
void check_reduction(const CollectiveCall& call);

}  // namespace dtensor
