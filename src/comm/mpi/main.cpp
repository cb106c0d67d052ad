// One MPI process of a launched program: from MPI_Init to the end that all ranks share, good or bad.
#include <ATen/Parallel.h>

#include <algorithm>
#include <cstdlib>
#include <thread>

#include "comm/describe.h"
#include "comm/launchers.h"
#include "comm/mpi/backend.h"
#include "comm/rank_exit.h"

namespace dtensor {
namespace mpi {
namespace {

void share_cores(RunOptions options) {
  if (!options.set_threads || std::getenv("OMP_NUM_THREADS") != nullptr) return;
  const char* local = std::getenv("OMPI_COMM_WORLD_LOCAL_SIZE");
  const int here = local != nullptr ? std::max(1, std::atoi(local)) : 1;
  at::set_num_threads(std::max(1, static_cast<int>(std::thread::hardware_concurrency()) / here));
}

// Whether MPI was started here, rather than by the program.
bool start_mpi(int argc, char** argv) {
  int done = 0, provided = 0;
  api().finalized(&done);
  TORCH_CHECK(done == 0, "launch: MPI has ended in this process and cannot start again");
  api().initialized(&done);
  if (done != 0) return false;
  check(api().init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided), "MPI_Init_thread");
  TORCH_CHECK(provided >= MPI_THREAD_MULTIPLE, "this MPI has no MPI_THREAD_MULTIPLE");
  return true;
}

// Another MPI's launcher, or variables set by hand, start this MPI in each process anew: every one would be rank 0
// of 1.
std::string mismatch(const Job& job, const LauncherEnvironment& e) {
  if (job.size() == e.size && job.rank() == e.rank) return "";
  const auto said = [](int rank, int size) { return "rank " + std::to_string(rank) + " of " + std::to_string(size); };
  return e.launcher + "'s variables say " + said(e.rank, e.size) + ", but MPI says " + said(job.rank(), job.size()) +
         "; start the program with the mpirun of the MPI that it was built with";
}

int run(int argc, char** argv, const std::function<void(Communicator)>& fn, RunOptions options,
        const LauncherEnvironment& environment) {
  if (const std::string trouble = load_api(); !trouble.empty()) return print_failure(environment.rank, trouble), 2;
  bool started = false;
  Job* job = nullptr;  // kept: communicators may outlive this call
  try {
    started = start_mpi(argc, argv);
    job = new Job(options);
    if (const std::string trouble = mismatch(*job, environment); !environment.launcher.empty() && !trouble.empty()) {
      print_failure(environment.rank, trouble);
      if (started) job->close(), api().finalize();
      return 2;
    }
    share_cores(options);
    fn(Communicator(make_world_backend(*job)));
    run_rank_exit_hooks();
    job->leave();
  } catch (...) {
    const std::string text = current_exception_text();
    if (job == nullptr) return print_failure(environment.rank, text), 1;
    job->fail("rank " + std::to_string(job->rank()) + " failed: " + text);
    print_failure(job->rank(), text);
    job->end();
  }
  if (!started) return 0;
  job->close();
  api().finalize();
  return 0;
}

}  // namespace
}  // namespace mpi

ProcessMain mpi_main() { return &mpi::run; }

}  // namespace dtensor
