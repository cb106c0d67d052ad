// from_mpi for code that does not include mpi.h.
#pragma once

#include "dtensor/comm.h"

namespace dtensor {

// `handle`: the communicator's number in Fortran (MPI_Comm_c2f). An error where the build has no MPI.
DTENSOR_API Communicator communicator_of_mpi_handle(int handle, const RunOptions& options = {});

}  // namespace dtensor
