// libdtensor_mpi.so: the only file that is linked with MPI.
#include "comm/mpi/api.h"

extern "C" __attribute__((visibility("default"))) const dtensor::mpi::Api dtensor_mpi_api = {
    .abort = &MPI_Abort,
    .comm_dup = &MPI_Comm_dup,
    .comm_get_attr = &MPI_Comm_get_attr,
    .comm_rank = &MPI_Comm_rank,
    .comm_set_errhandler = &MPI_Comm_set_errhandler,
    .comm_size = &MPI_Comm_size,
    .error_string = &MPI_Error_string,
    .finalize = &MPI_Finalize,
    .finalized = &MPI_Finalized,
    .get_count = &MPI_Get_count,
    .init_thread = &MPI_Init_thread,
    .initialized = &MPI_Initialized,
    .iprobe = &MPI_Iprobe,
    .irecv = &MPI_Irecv,
    .isend = &MPI_Isend,
    .recv = &MPI_Recv,
    .testsome = &MPI_Testsome,
    .world = MPI_COMM_WORLD,
    .no_request = MPI_REQUEST_NULL,
    .byte = MPI_BYTE,
    .errors_return = MPI_ERRORS_RETURN,
};
