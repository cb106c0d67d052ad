// Starts a program's ranks: threads of this process, MPI processes or one process a GPU, by how the program was
// started.
#pragma once

#include <functional>

#include "dtensor/comm.h"
#include "dtensor/export.h"

namespace dtensor {

// Under mpirun: MPI. Under torchrun or Slurm, or where DTENSOR_RANK and DTENSOR_WORLD_SIZE are set: NCCL in a program
// that links dtensor::cuda, else sockets; the processes meet at MASTER_ADDR and MASTER_PORT (Slurm: on the step's first
// host). A single process: thread ranks, as many as `--ranks N` or `--mesh a=2,b=2` in argv ask for (default 1).
// `--backend local|mpi|nccl|socket` overrides; with `--backend nccl` a rank has a GPU of its own, a process under
// mpirun, else a thread (by default one for each GPU). Returns the exit status: 0; 1 with a line on stderr when a rank
// threw; 2 with a line when these flags make no sense, or the environment or the machine lacks what they ask for; 1
// where what was printed could not be written (finish_output). Does not consume argv: other flags are the program's.
DTENSOR_API int launch(int argc, char** argv, const std::function<void(Communicator)>& fn, RunOptions options = {});

// Writes out what a program has printed. Returns `status`; 1, with a line on stderr, where it was 0 and standard output
// could not be written (a full disk, a closed pipe).
DTENSOR_API int finish_output(int status);

// NCCL communicators, for programs that link dtensor::cuda. launch() finds them by itself where it needs them.

// A communicator of the same ranks as `cpu` (thread ranks or MPI processes) that moves tensors of CUDA device `device`
// of each rank with NCCL, and small CPU tensors by way of it. `cpu` carries the ids of this and of its subgroups.
// Collective.
DTENSOR_API Communicator nccl_communicator(const Communicator& cpu, int device, RunOptions options = {});

}  // namespace dtensor
