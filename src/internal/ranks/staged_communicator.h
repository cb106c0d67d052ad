// Collectives for tensors on devices whose memory a backend cannot access.
#pragma once

#include "dtensor/comm.h"

namespace dtensor {

// A communicator of the same ranks, for tensors on any device that LibTorch supports. Collectives pass copies on
// `through` to the backend of `ranks` and complete before they return; tensors that are there already are not copied.
// Do not use `ranks` for other calls.
DTENSOR_API Communicator staged_communicator(const Communicator& ranks, c10::Device through);

}  // namespace dtensor
