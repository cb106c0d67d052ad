// One MPI process of a launched program.
#include <c10/util/Exception.h>

#include "comm/error_messages.h"
#include "comm/launch/launchers.h"
#include "comm/mpi/transport.h"
#include "comm/p2p/job/process.h"

namespace dtensor {
namespace mpi {
namespace {

// Initializes MPI unless the program has done so; returns whether it did.
bool start_mpi(int argc, char** argv) {
  int done = 0, provided = 0;
  api().finalized(&done);
  TORCH_CHECK(done == 0, "launch: MPI was finalized in this process and cannot be initialized again");
  api().initialized(&done);
  if (done != 0) return false;
  const int code = api().init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
  TORCH_CHECK(code == MPI_SUCCESS, "MPI_Init_thread: error ", code);
  TORCH_CHECK(provided >= MPI_THREAD_MULTIPLE, "this MPI library does not provide MPI_THREAD_MULTIPLE");
  return true;
}

// With the launcher of another MPI, or with variables that the user set, this MPI initializes each process as rank 0
// of 1.
std::string mismatch(const p2p::Transport& job, const LauncherEnvironment& e) {
  if (e.launcher.empty() || (job.size() == e.size && job.rank() == e.rank)) return "";
  const auto position = [](int rank, int size) {
    return "rank " + std::to_string(rank) + " of " + std::to_string(size);
  };
  return e.launcher + "'s variables say " + position(e.rank, e.size) + ", but MPI says " +
         position(job.rank(), job.size()) + "; start the program with the mpirun of the MPI that it was built with";
}

int run(int argc, char** argv, const std::function<void(Communicator)>& fn, RunOptions options,
        const LauncherEnvironment& environment) {
  if (const std::string trouble = load_api(); !trouble.empty()) return print_failure(environment.rank, trouble), 2;
  std::unique_ptr<p2p::Transport> transport;
  try {
    const bool started_here = start_mpi(argc, argv);
    transport = make_transport(api().constants.world, started_here);
  } catch (...) {
    return print_failure(environment.rank, current_exception_text()), 1;
  }
  if (const std::string trouble = mismatch(*transport, environment); !trouble.empty()) {
    print_failure(environment.rank, trouble);
    transport->finish();
    return 2;
  }
  return p2p::run_process(std::move(transport), fn, options);
}

}  // namespace
}  // namespace mpi

ProcessMain mpi_main() { return &mpi::run; }

}  // namespace dtensor
