// The table of MPI functions that this library uses. A separate library (libdtensor_mpi.so, src/comm/mpi/library)
// provides it, so that libdtensor.so needs no MPI and loads it only in programs started by mpirun.
#pragma once

#include <mpi.h>

#include <string>

namespace dtensor::mpi {

// Values that each MPI defines in its own way.
struct Constants {
  MPI_Comm world, no_comm;
  MPI_Request no_request;
  MPI_Datatype byte, integer;
  MPI_Op max;
  MPI_Info no_info;
  MPI_Errhandler errors_return;
  MPI_Comm_copy_attr_function* no_copy;
};

struct Api {
  decltype(&MPI_Abort) abort;
  decltype(&MPI_Allgather) allgather;
  decltype(&MPI_Allreduce) allreduce;
  MPI_Fint (*comm_c2f)(MPI_Comm);
  decltype(&MPI_Comm_create_keyval) comm_create_keyval;
  decltype(&MPI_Comm_dup) comm_dup;
  MPI_Comm (*comm_f2c)(MPI_Fint);
  decltype(&MPI_Comm_free) comm_free;
  decltype(&MPI_Comm_get_attr) comm_get_attr;
  decltype(&MPI_Comm_get_errhandler) comm_get_errhandler;
  decltype(&MPI_Comm_idup) comm_idup;
  decltype(&MPI_Comm_rank) comm_rank;
  decltype(&MPI_Comm_set_attr) comm_set_attr;
  decltype(&MPI_Comm_set_errhandler) comm_set_errhandler;
  decltype(&MPI_Comm_size) comm_size;
  decltype(&MPI_Comm_split_type) comm_split_type;
  decltype(&MPI_Comm_test_inter) comm_test_inter;
  decltype(&MPI_Errhandler_free) errhandler_free;
  decltype(&MPI_Error_string) error_string;
  decltype(&MPI_Finalize) finalize;
  decltype(&MPI_Finalized) finalized;
  decltype(&MPI_Get_count) get_count;
  decltype(&MPI_Iallreduce) iallreduce;
  decltype(&MPI_Init_thread) init_thread;
  decltype(&MPI_Initialized) initialized;
  decltype(&MPI_Iprobe) iprobe;
  decltype(&MPI_Irecv) irecv;
  decltype(&MPI_Isend) isend;
  decltype(&MPI_Is_thread_main) is_thread_main;
  decltype(&MPI_Query_thread) query_thread;
  decltype(&MPI_Recv) recv;
  decltype(&MPI_Test) test;
  decltype(&MPI_Testsome) testsome;
  Constants constants;
};

// The symbol of the table in the library.
inline constexpr const char* kApiSymbol = "dtensor_mpi_api";

// Loads MPI: first from the directory of the library or program with this code, else by the usual search. Returns an
// empty string, or the reason of the failure. Call it before api().
std::string load_api();
const Api& api();

}  // namespace dtensor::mpi
