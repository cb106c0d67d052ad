// Communicators over those of a program that owns MPI.
#include <c10/util/Exception.h>

#include <array>
#include <memory>
#include <thread>

#include "comm/error_messages.h"
#include "comm/launch/rank_exit.h"
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
  std::shared_ptr<p2p::Job> job;
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

// Waits for an operation that all ranks start. A blocking call would wait forever for a rank that passes another
// communicator.
void wait_for_all(MPI_Request& request, std::chrono::milliseconds timeout) {
  const auto begin = std::chrono::steady_clock::now();
  for (int done = 0; done == 0;) {
    check(api().test(&request, &done, MPI_STATUS_IGNORE), "MPI_Test");
    const auto waited = std::chrono::steady_clock::now() - begin;
    if (done == 0 && waited > timeout && !timeouts_suspended()) {
      throw CommError("timeout after " + duration_text(timeout) +
                      ": expected all ranks of the communicator to call from_mpi with it, but some have not; do the "
                      "ranks pass different communicators?");
    }
    if (waited > std::chrono::milliseconds(5)) std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
}

MPI_Comm duplicate(MPI_Comm comm, std::chrono::milliseconds timeout) {
  auto made = std::make_unique<MPI_Comm>(api().constants.no_comm);
  MPI_Request request = api().constants.no_request;
  check(api().comm_idup(comm, made.get(), &request), "MPI_Comm_idup");
  try {
    wait_for_all(request, timeout);
  } catch (...) {
    static_cast<void>(made.release());  // MPI may still write there
    throw;
  }
  return *made;
}

// Whether a rank passes true.
bool on_any_rank(bool own, MPI_Comm decisions, std::chrono::milliseconds timeout) {
  auto numbers = std::make_unique<std::array<int, 2>>(std::array{own ? 1 : 0, 0});
  MPI_Request request = api().constants.no_request;
  check(api().iallreduce(numbers->data(), numbers->data() + 1, 1, api().constants.integer, api().constants.max,
                         decisions, &request),
        "MPI_Iallreduce");
  try {
    wait_for_all(request, timeout);
  } catch (...) {
    static_cast<void>(numbers.release());
    throw;
  }
  return (*numbers)[1] != 0;
}

// Called when the program frees its communicator, on all ranks. The duplicates are freed if no object of the library
// uses them on any rank; else they stay until the end of the process, as those of a failed job, whose messages may be
// under way. Of MPI_COMM_WORLD it is called by MPI_Finalize, where the process ends anyway.
int release(MPI_Comm comm, int, void* value, void*) {
  if (has_ended() || comm == api().constants.world) return MPI_SUCCESS;
  auto* attached = static_cast<Attached*>(value);
  try {
    attached->communicator = {};
    run_rank_exit_hooks();  // caches keep meshes
    const bool used = attached->job->failed() || !p2p::is_unused(attached->job);
    if (on_any_rank(used, attached->decisions, attached->job->options().timeout)) return MPI_SUCCESS;
    p2p::forget_job(std::move(attached->job));
    api().comm_free(&attached->decisions);
    delete attached;
  } catch (const std::exception&) {  // the duplicates stay
  }
  return MPI_SUCCESS;
}

int attribute() {
  static const int keyval = [] {
    int made = 0;
    check(api().comm_create_keyval(api().constants.no_copy, &release, &made, nullptr), "MPI_Comm_create_keyval");
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
  attached->job->poll();
  const bool failed = on_any_rank(attached->job->failed(), attached->decisions, attached->job->options().timeout);
  return failed ? nullptr : attached;
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
  const MPI_Comm decisions = duplicate(comm, limited.timeout);
  const auto job = p2p::make_job(make_transport(decisions, /*finalize=*/false), limited);
  auto* attached = new Attached{decisions, job, p2p::start(*job)};
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
