// Stands in for src/comm/mpi where MPI was not built.
#include <c10/util/Exception.h>

#include "comm/launch/launchers.h"
#include "internal/ranks/mpi_handle.h"

namespace dtensor {

ProcessMain mpi_main() { return nullptr; }

Communicator communicator_of_mpi_handle(int, const RunOptions&) {
  TORCH_CHECK(false, "this build of dtensor has no MPI; build it where an MPI compiler (mpicxx) is installed");
}

}  // namespace dtensor
