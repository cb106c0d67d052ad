// One process of a launched program, connected to the others by sockets: no MPI and no GPU.
#include <atomic>

#include "comm/describe.h"
#include "comm/launch/launch_flags.h"
#include "comm/launch/launchers.h"
#include "comm/pairwise/process.h"
#include "comm/record/hash.h"
#include "comm/socket/environment.h"
#include "comm/socket/transport.h"

namespace dtensor {
namespace sockets {
namespace {

int run(int, char**, const std::function<void(Communicator)>& fn, RunOptions options,
        const LauncherEnvironment& environment) {
  // The table of a job that this process was part of before is still there, with the addresses of that time.
  static std::atomic<std::uint64_t> starts{0};
  Place place = meeting_place(environment, options.timeout);
  place.job = mixed(place.job, ++starts);
  std::unique_ptr<pairwise::Transport> transport;
  try {
    transport = make_transport(environment.rank, meet(place));
  } catch (...) {
    return print_failure(environment.rank, current_exception_text()), 1;
  }
  return pairwise::run_process(std::move(transport), fn, options);
}

}  // namespace
}  // namespace sockets

ProcessMain socket_main() { return &sockets::run; }

}  // namespace dtensor
