// Communicators for a program that owns MPI: it calls MPI_Init and MPI_Finalize, and has communicators of its own.
//
//   MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
//   const dtensor::Communicator ranks = dtensor::from_mpi(MPI_COMM_WORLD);
//   const dtensor::DeviceMesh mesh = dtensor::init_device_mesh(ranks, at::kCPU, {ranks.size()}, {"dp"});
//
// Needs a build with MPI. A program that starts through launch() does not need this header.
#pragma once

#include <mpi.h>

#include <type_traits>

#include "dtensor/comm.h"

namespace dtensor {

// A communicator over the ranks of `comm`, an intracommunicator, in their order. The library communicates on duplicates
// of `comm`, so the program may go on to use it, and may free it. Communicators of several `comm` may be used side by
// side. A second call with the same `comm` returns the communicator of the first, with its options. Collective over
// `comm`.
//
// Threads: under MPI_THREAD_MULTIPLE any thread may communicate. Under MPI_THREAD_SERIALIZED the library's own calls
// take turns; the program must not call MPI in the meantime. Under MPI_THREAD_FUNNELED and MPI_THREAD_SINGLE,
// communication on another thread than the one that initialized MPI is a CommError. RunOptions::set_threads gives this
// rank's intra-op threads the cores that the launcher bound it to, divided by the ranks that share them.
//
// The program may call MPI_Finalize before or after its last object of this library is destroyed; communication after
// MPI_Finalize is a CommError. A rank that fails reports the failure to the other ranks, whose next or current
// communication is a CommError; the process does not end. Call from_mpi again after such a failure.
//
// Throws c10::Error if MPI is not initialized or has ended, or if `comm` is MPI_COMM_NULL, was freed, or is an
// intercommunicator.
DTENSOR_API Communicator from_mpi(MPI_Comm comm, const RunOptions& options = {});

// The same for a communicator of Fortran (`integer`, or `comm%mpi_val` of mpi_f08) or of mpi4py (`comm.py2f()`).
DTENSOR_API Communicator from_mpi_fortran(MPI_Fint comm, const RunOptions& options = {});

// The same where both types of handles differ, so that a Fortran handle given to from_mpi compiles.
template <class Handle>
requires(std::is_same_v<Handle, MPI_Fint> && !std::is_same_v<MPI_Comm, MPI_Fint>) Communicator
    from_mpi(Handle comm, const RunOptions& options = {}) {
  return from_mpi_fortran(comm, options);
}

}  // namespace dtensor
