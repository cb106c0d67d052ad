// libdtensor_mpi.so: the only file that is linked with MPI.
#include "comm/mpi/api.h"

static const dtensor::mpi::Constants kConstants = {
    .world = MPI_COMM_WORLD,
    .no_comm = MPI_COMM_NULL,
    .no_request = MPI_REQUEST_NULL,
    .byte = MPI_BYTE,
    .integer = MPI_INT,
    .max = MPI_MAX,
    .no_info = MPI_INFO_NULL,
    .errors_return = MPI_ERRORS_RETURN,
    .no_copy = MPI_COMM_NULL_COPY_FN,
    .no_delete = MPI_COMM_NULL_DELETE_FN,
};

extern "C" __attribute__((visibility("default"))) const dtensor::mpi::Api dtensor_mpi_api = {
    .abort = &MPI_Abort,
    .allgather = &MPI_Allgather,
    .allreduce = &MPI_Allreduce,
    .comm_c2f = [](MPI_Comm comm) { return MPI_Comm_c2f(comm); },  // a macro in some MPIs
    .comm_create_keyval = &MPI_Comm_create_keyval,
    .comm_dup = &MPI_Comm_dup,
    .comm_f2c = [](MPI_Fint handle) { return MPI_Comm_f2c(handle); },
    .comm_free = &MPI_Comm_free,
    .comm_get_attr = &MPI_Comm_get_attr,
    .comm_get_errhandler = &MPI_Comm_get_errhandler,
    .comm_rank = &MPI_Comm_rank,
    .comm_set_attr = &MPI_Comm_set_attr,
    .comm_set_errhandler = &MPI_Comm_set_errhandler,
    .comm_size = &MPI_Comm_size,
    .comm_split_type = &MPI_Comm_split_type,
    .comm_test_inter = &MPI_Comm_test_inter,
    .errhandler_free = &MPI_Errhandler_free,
    .error_string = &MPI_Error_string,
    .finalize = &MPI_Finalize,
    .finalized = &MPI_Finalized,
    .get_count = &MPI_Get_count,
    .init_thread = &MPI_Init_thread,
    .initialized = &MPI_Initialized,
    .iprobe = &MPI_Iprobe,
    .irecv = &MPI_Irecv,
    .isend = &MPI_Isend,
    .is_thread_main = &MPI_Is_thread_main,
    .query_thread = &MPI_Query_thread,
    .recv = &MPI_Recv,
    .testsome = &MPI_Testsome,
    .constants = kConstants,
};
