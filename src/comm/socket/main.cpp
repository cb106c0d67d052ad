// One process of a launched program over sockets, without MPI and GPU.
#include <atomic>

#include "comm/error_messages.h"
#include "comm/launch/launch_flags.h"
#include "comm/launch/launchers.h"
#include "comm/p2p/job/process.h"
#include "comm/record/hash.h"
#include "comm/socket/rendezvous/environment.h"
#include "comm/socket/transport.h"

namespace dtensor {
namespace sockets {
namespace {

int run(int, char**, const std::function<void(Communicator)>& fn, RunOptions options,
        const LauncherEnvironment& environment) {
  // Tables of earlier jobs of this process still exist, with old addresses, so each start gets another job id.
  static std::atomic<std::uint64_t> starts{0};
  RendezvousOptions where = rendezvous_options(environment, options.timeout);
  where.job = hash_combine(where.job, ++starts);
  std::unique_ptr<p2p::Transport> transport;
  try {
    transport = make_transport(environment.rank, rendezvous(where));
  } catch (...) {
    return print_failure(environment.rank, current_exception_text()), 1;
  }
  return p2p::run_process(std::move(transport), fn, options);
}

}  // namespace
}  // namespace sockets

ProcessMain socket_main() { return &sockets::run; }

}  // namespace dtensor
