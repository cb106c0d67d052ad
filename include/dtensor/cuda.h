// NCCL communicators, for programs that link dtensor::cuda. launch() finds them by itself where it needs them.
#pragma once

#include "dtensor/comm.h"
#include "dtensor/export.h"

namespace dtensor {

// A communicator of the same ranks as `cpu` (thread ranks or MPI processes) that moves tensors of CUDA device `device`
// of each rank with NCCL, and small CPU tensors by way of it. `cpu` carries the ids of this and of its subgroups.
// Collective.
DTENSOR_API Communicator nccl_communicator(const Communicator& cpu, int device, RunOptions options = {});

}  // namespace dtensor
