// Starts the ranks of a program: threads of this process, MPI processes, or one process per GPU, depending on the
// launcher.
#pragma once

#include <functional>
#include <string>

#include "dtensor/comm.h"
#include "dtensor/export.h"

namespace dtensor {

// Under mpirun: MPI. Under torchrun or Slurm, or if DTENSOR_RANK and DTENSOR_WORLD_SIZE are set: NCCL if the program
// links dtensor::cuda, else sockets. The processes connect at MASTER_ADDR and MASTER_PORT (Slurm: on the first host of
// the step). A single process: thread ranks, as many as `--ranks N` or `--mesh a=2,b=2` in argv specify (default 1).
// `--backend local|mpi|nccl|socket` overrides. With `--backend nccl` each rank has its own GPU; a rank is a process
// under a launcher, else a thread (by default one for each GPU).
// Returns the exit status: 0 on success; 1 with a line on stderr if a rank threw, or if the output could not be written
// (finish_output); 2 with a line if these flags are invalid or not supported by the environment or the machine. Does
// not consume argv: the program may have other flags.
DTENSOR_API int launch(int argc, char** argv, const std::function<void(Communicator)>& fn, RunOptions options = {});

// Flushes standard output. Returns `status`, or 1 with a line on stderr if `status` is 0 and the output could not be
// written (a full disk, a closed pipe).
DTENSOR_API int finish_output(int status);

// A communicator of the same ranks as `cpu` (thread ranks, or processes, such as those of from_mpi). It moves tensors
// of CUDA device `device` of each rank with NCCL. -1: the local rank, which is the number of the rank among those of
// `cpu` on its host, modulo the visible devices. `cpu` moves CPU tensors, and exchanges the NCCL ids of this
// communicator and its subgroups. Loads libdtensor_cuda.so if the program does not link dtensor::cuda. Throws
// c10::Error if that fails or there is no device. Collective.
DTENSOR_API Communicator nccl_communicator(const Communicator& cpu, int device = -1, RunOptions options = {});

// From here on SIGINT (Ctrl-C) ends this process with the line `PROGRAM: interrupted` on stderr, if it is rank 0 or the
// only process; the exit status is still that of the signal. Under mpirun, which sends SIGTERM to its ranks when it is
// interrupted and when a rank has failed, the line says that. A handler of the program, or SIG_IGN, is kept. launch()
// calls it with the name of the program; a program that works before or without launch() calls it first.
DTENSOR_API void report_interrupt(const std::string& program);

}  // namespace dtensor
