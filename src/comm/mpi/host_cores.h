// How many cores of its host a rank may use.
#pragma once

#include <mpi.h>

namespace dtensor::mpi {

struct HostCores {
  int ranks = 1;           // of the communicator, on this host
  int cores_per_rank = 1;  // cores that this rank is bound to, divided by the ranks that are bound to the same ones
};

// Collective over `comm`.
HostCores cores_of_host(MPI_Comm comm);

}  // namespace dtensor::mpi
