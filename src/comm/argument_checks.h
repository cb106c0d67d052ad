// Checks of a collective's arguments that need no other rank.
#pragma once

#include "dtensor/comm_backend.h"

namespace dtensor {

// Each function throws c10::Error with the invalid values. `call` supplies the kind for the message.
void check_input(const CommBackend& backend, const CollectiveCall& call, const at::Tensor& tensor,
                 at::ScalarType dtype);
void check_output(const CommBackend& backend, const CollectiveCall& call, const at::Tensor& tensor,
                  at::ScalarType dtype);
// All tensors have the call's dtype and do not overlap; only the input of a gather may be this member's own output.
void check_tensors(const CommBackend& backend, const CollectiveCall& call, at::TensorList outputs,
                   at::TensorList inputs);
// All tensors are in memory of one device type, since host and device memory are read in different ways.
void check_one_device(const CollectiveCall& call, at::TensorList outputs, at::TensorList inputs);
// No output overlaps another output or an input, except that inputs[k] may be outputs[own + k] itself.
void check_no_overlap(const CollectiveCall& call, at::TensorList outputs, at::TensorList inputs, std::size_t own);
void check_list(const CommBackend& backend, const CollectiveCall& call, at::TensorList list, const char* what);
void check_same_sizes(const CollectiveCall& call, const at::Tensor& mine_out, const at::Tensor& mine_in);
void check_peer(const CommBackend& backend, const CollectiveCall& call);
// Checks the other rank and the tag of a send or recv.
void check_message(const CommBackend& backend, const CollectiveCall& call);
void check_reduction(const CollectiveCall& call);

}  // namespace dtensor
