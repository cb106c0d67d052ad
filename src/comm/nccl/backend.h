// The CommBackend over NCCL.
#pragma once

#include <memory>

#include "dtensor/comm_backend.h"

namespace dtensor::nccl {

// A backend for the ranks of `cpu` on CUDA device `device`. `cpu` exchanges NCCL ids and reports aborts of other ranks
// to ranks that wait for their GPU. Shares the record of `cpu`. Collective.
std::shared_ptr<CommBackend> make_world_backend(const Communicator& cpu, int device, RunOptions options);

}  // namespace dtensor::nccl
