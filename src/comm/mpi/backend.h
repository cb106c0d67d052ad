// The CommBackend over MPI processes.
#pragma once

#include <memory>

#include "comm/mpi/job.h"
#include "dtensor/comm_backend.h"

namespace dtensor::mpi {

std::shared_ptr<CommBackend> make_world_backend(Job& job);

}  // namespace dtensor::mpi
