// Messages between MPI processes.
#pragma once

#include <memory>

#include "comm/mpi/api.h"
#include "comm/p2p/transport.h"

namespace dtensor::mpi {

// The largest single MPI message in bytes; longer messages are split, since MPI counts are int. Only tests change it.
extern std::int64_t max_message_bytes;

// Throws CommError with MPI's own text where `code` is an error.
void check(int code, const char* what);

// Duplicates `comm`, so that messages of the library never meet those of the program. MPI is initialized. Collective
// over `comm`. `finalize`: finish() calls MPI_Finalize.
std::unique_ptr<p2p::Transport> make_transport(MPI_Comm comm, bool finalize);

}  // namespace dtensor::mpi
