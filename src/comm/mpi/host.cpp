// Communicators over those of a program that owns MPI.
#include <c10/util/Exception.h>

#include "comm/mpi/thread_level.h"
#include "comm/mpi/transport.h"
#include "comm/p2p/backend.h"
#include "comm/p2p/job/process.h"
#include "comm/waiting/no_timeout.h"
#include "dtensor/mpi.h"
#include "internal/ranks/mpi_handle.h"

namespace dtensor {
namespace mpi {
namespace {

// What from_mpi attaches to a communicator of the program.
struct Attached {
  MPI_Comm decisions;  // for what ranks decide together
  p2p::Job& job;
  Communicator communicator;
};

void check_started() {
  const std::string trouble = load_api();
  TORCH_CHECK(trouble.empty(), "from_mpi: ", trouble);
  int started = 0;
  api().initialized(&started);
  TORCH_CHECK(started != 0, "from_mpi: MPI is not initialized; call MPI_Init_thread before from_mpi");
  TORCH_CHECK(!has_ended(), "from_mpi: MPI has ended in this process; call from_mpi before MPI_Finalize");
}

// MPI reports errors of an invalid handle to the handler of MPI_COMM_WORLD, which ends the program by default.
class ErrorsReturn {
 public:
  ErrorsReturn() {
    api().comm_get_errhandler(api().constants.world, &former_);
    api().comm_set_errhandler(api().constants.world, api().constants.errors_return);
  }
  ~ErrorsReturn() {
    api().comm_set_errhandler(api().constants.world, former_);
    api().errhandler_free(&former_);
  }
  ErrorsReturn(const ErrorsReturn&) = delete;
  ErrorsReturn& operator=(const ErrorsReturn&) = delete;

 private:
  MPI_Errhandler former_{};
};

void check_communicator(MPI_Comm comm) {
  TORCH_CHECK(comm != api().constants.no_comm,
              "from_mpi: expected a communicator that includes this process, got MPI_COMM_NULL");
  const ErrorsReturn guard;
  int is_inter = 0;
  // Open MPI looks at a freed handle's memory; its table of handles for Fortran has the handle no more.
  const bool known = api().comm_f2c(api().comm_c2f(comm)) == comm;
  TORCH_CHECK(known && api().comm_test_inter(comm, &is_inter) == MPI_SUCCESS,
              "from_mpi: expected a valid communicator, got one that MPI does not know; was it freed?");
  TORCH_CHECK(is_inter == 0,
              "from_mpi: expected an intracommunicator, got an intercommunicator; use MPI_Intercomm_merge");
}

int attribute() {
  static const int keyval = [] {
    int made = 0;
    check(api().comm_create_keyval(api().constants.no_copy, api().constants.no_delete, &made, nullptr),
          "MPI_Comm_create_keyval");
    return made;
  }();
  return keyval;
}

// Null: none, or a rank has reported a failure there.
const Attached* attached_to(MPI_Comm comm) {
  void* value = nullptr;
  int found = 0;
  check(api().comm_get_attr(comm, attribute(), &value, &found), "MPI_Comm_get_attr");
  if (found == 0) return nullptr;
  const auto* attached = static_cast<const Attached*>(value);
  attached->job.poll();
  const int own = attached->job.failed() ? 1 : 0;
  int any = 0;
  check(api().allreduce(&own, &any, 1, api().constants.integer, api().constants.max, attached->decisions),
        "MPI_Allreduce");
  return any == 0 ? attached : nullptr;
}

}  // namespace
}  // namespace mpi

Communicator from_mpi(MPI_Comm comm, const RunOptions& options) {
  using namespace mpi;
  check_started();
  check_communicator(comm);
  ThreadLevel::get().check();
  const auto turn = ThreadLevel::get().lock();
  if (const auto* known = attached_to(comm)) return known->communicator;
  RunOptions limited = options;
  limited.timeout = clamp_timeout(options.timeout);
  MPI_Comm decisions = api().constants.no_comm;
  check(api().comm_dup(comm, &decisions), "MPI_Comm_dup");
  p2p::Job& job = p2p::make_job(make_transport(comm, /*finalize=*/false), limited);
  auto* attached = new Attached{decisions, job, p2p::start(job)};  // as long as the job, which lives with the process
  check(api().comm_set_attr(comm, attribute(), attached), "MPI_Comm_set_attr");
  return attached->communicator;
}

Communicator from_mpi_fortran(MPI_Fint comm, const RunOptions& options) {
  mpi::check_started();
  return from_mpi(mpi::api().comm_f2c(comm), options);
}

Communicator communicator_of_mpi_handle(int handle, const RunOptions& options) {
  return from_mpi_fortran(handle, options);
}

}  // namespace dtensor
