// Messages between MPI processes.
#pragma once

#include <memory>

#include "comm/mpi/api.h"
#include "comm/p2p/transport.h"

namespace dtensor::mpi {

// The largest single MPI message in bytes; longer ones are cut (counts are int). Changed by tests only.
extern std::int64_t max_message_bytes;

// MPI is initialised; collective over all its processes. `finalize`: with finish().
std::unique_ptr<p2p::Transport> make_transport(bool finalize);

}  // namespace dtensor::mpi
