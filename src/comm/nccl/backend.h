// The CommBackend over NCCL.
#pragma once

#include <functional>
#include <memory>

#include "dtensor/comm_backend.h"

namespace dtensor::nccl {

// A backend for the ranks of `cpu` on CUDA device `device`. `cpu` exchanges NCCL ids and reports aborts of other ranks
// to ranks that wait for their GPU. Shares the record of `cpu`. Collective.
std::shared_ptr<CommBackend> make_world_backend(const Communicator& cpu, int device, RunOptions options);

// Calls body() with a current CUDA stream that only this thread uses.
void run_on_own_stream(int device, const std::function<void()>& body);

}  // namespace dtensor::nccl
