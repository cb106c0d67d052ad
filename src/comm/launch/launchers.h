// The ways to start ranks that launch() selects from.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "dtensor/comm.h"
#include "dtensor/comm_backend.h"

namespace dtensor {

// The job of this process, from the environment and the command line.
struct LauncherEnvironment {
  std::string launcher;  // "mpirun", "torchrun", "srun", "DTENSOR_RANK"; empty: none
  int rank = 0;
  int size = 1;
  bool mpi = false;          // an MPI runtime is available
  int threads = 0;           // thread ranks that the command line requests; 0: not given
  std::string warning = {};  // about launchers inside each other; empty: none
};

// One process of several, connected. Runs fn and returns the exit status.
using ProcessMain = int (*)(int argc, char** argv, const std::function<void(Communicator)>& fn, RunOptions options,
                            const LauncherEnvironment& environment);

// Defined in src/comm/mpi, or in src/comm/launch/no_mpi.cpp, where it returns null.
DTENSOR_API ProcessMain mpi_main();

// Defined in src/comm/socket.
DTENSOR_API ProcessMain socket_main();

// Entries of the CUDA library, which registers them when it is loaded; null without it.
struct NcclEntries {
  ProcessMain main = nullptr;
  Communicator (*communicator)(const Communicator& cpu, int device, RunOptions options) = nullptr;
};
const NcclEntries& nccl_entries();
DTENSOR_API void register_nccl(const NcclEntries& entries);
// Loads the CUDA library if it is not. Empty, or the reason why it cannot be used.
std::string load_nccl();

// The dry run that the command line requests (include/dtensor/dry_run.h).
struct DryRunRequest {
  int ranks = 0, rank = 0;
  std::optional<double> number;  // --dtensor-simulate-number
  bool staging = false;          // --backend mpi or socket
};

// Runs fn as that rank, prints the report and returns the exit status. Registered by src/dry_run.
using SimulationMain = int (*)(const DryRunRequest& which, const std::function<void(Communicator)>& fn);
SimulationMain simulation_main();
DTENSOR_API void register_simulation_main(SimulationMain main);

// Flushes standard output before the process exits without doing so. Skipped while another thread is printing.
DTENSOR_API void flush_standard_output();

// Prints "rank r: text" on stderr in one line, followed by the backtrace, if any, with one line per frame.
DTENSOR_API void print_failure(int rank, const std::string& text, const std::string& trace = "");

}  // namespace dtensor
