// The ways to start ranks that launch() chooses from.
#pragma once

#include <functional>
#include <string>

#include "dtensor/comm.h"
#include "dtensor/comm_backend.h"

namespace dtensor {

// What a process may say about the job that it is part of.
struct LauncherEnvironment {
  std::string launcher;  // "mpirun", "torchrun", "srun", "DTENSOR_RANK"; empty: none
  int rank = 0;
  int size = 1;
  bool mpi = false;  // an MPI runtime stands behind it
  int threads = 0;   // thread ranks that the command line asks for; 0: nothing said
};

// One process of several, connected. Runs fn and returns the exit status.
using ProcessMain = int (*)(int argc, char** argv, const std::function<void(Communicator)>& fn, RunOptions options,
                            const LauncherEnvironment& environment);

// src/comm/mpi, or src/comm/launch/no_mpi.cpp, where it is null.
DTENSOR_API ProcessMain mpi_main();

// src/comm/socket.
DTENSOR_API ProcessMain socket_main();

// Registered by the CUDA library (include/dtensor/launch.h); null without it.
ProcessMain nccl_main();
DTENSOR_API void register_nccl_main(ProcessMain main);

// Writes out what this process has printed, before it ends without doing so; not where another thread is printing.
DTENSOR_API void flush_standard_output();

// Prints "rank r: text" on stderr, as one line, and behind it, where there is one, a backtrace, a line for each frame.
DTENSOR_API void print_failure(int rank, const std::string& text, const std::string& trace = "");

}  // namespace dtensor
