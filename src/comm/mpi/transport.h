// Messages between MPI processes.
#pragma once

#include <memory>

#include "comm/mpi/api.h"
#include "comm/p2p/transport.h"

namespace dtensor::mpi {

// The largest single MPI message in bytes; longer messages are split, since MPI counts are int. Only tests change it.
extern std::int64_t max_message_bytes;

// MPI must be initialized; collective over all its processes. `finalize`: finish() finalizes MPI.
std::unique_ptr<p2p::Transport> make_transport(bool finalize);

}  // namespace dtensor::mpi
