// MPI as a table of what this library uses of it, which a library of its own (libdtensor_mpi.so, src/comm/mpi/library)
// fills: libdtensor.so itself needs no MPI, and a program that was not started by mpirun never loads it.
#pragma once

#include <mpi.h>

#include <string>

namespace dtensor::mpi {

struct Api {
  decltype(&MPI_Abort) abort;
  decltype(&MPI_Comm_dup) comm_dup;
  decltype(&MPI_Comm_get_attr) comm_get_attr;
  decltype(&MPI_Comm_rank) comm_rank;
  decltype(&MPI_Comm_set_errhandler) comm_set_errhandler;
  decltype(&MPI_Comm_size) comm_size;
  decltype(&MPI_Error_string) error_string;
  decltype(&MPI_Finalize) finalize;
  decltype(&MPI_Finalized) finalized;
  decltype(&MPI_Get_count) get_count;
  decltype(&MPI_Init_thread) init_thread;
  decltype(&MPI_Initialized) initialized;
  decltype(&MPI_Iprobe) iprobe;
  decltype(&MPI_Irecv) irecv;
  decltype(&MPI_Isend) isend;
  decltype(&MPI_Recv) recv;
  decltype(&MPI_Testsome) testsome;
  MPI_Comm world;
  MPI_Request no_request;
  MPI_Datatype byte;
  MPI_Errhandler errors_return;
};

// The name of the table in the library.
inline constexpr const char* kApiSymbol = "dtensor_mpi_api";

// Loads MPI: from beside the library or program that this code is in, else by the usual search. Empty, or why it cannot
// be loaded. To be called before api().
std::string load_api();
const Api& api();

}  // namespace dtensor::mpi
