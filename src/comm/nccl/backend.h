// The CommBackend over NCCL.
#pragma once

#include <memory>

#include "dtensor/comm_backend.h"

namespace dtensor::nccl {

// The ranks of `cpu`, on CUDA device `device` of this machine. `cpu` moves CPU tensors: it carries the ids of NCCL's
// communicators, and tells ranks that wait on their GPUs when one aborts. Shares its record of what this rank does.
// Collective.
std::shared_ptr<CommBackend> make_world_backend(const Communicator& cpu, int device, RunOptions options);

}  // namespace dtensor::nccl
