// The chosen rank waits until a debugger traces its process and then raises SIGTRAP. The other ranks wait in a barrier.
#include "dtensor/debug.h"

#include <c10/util/Exception.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <fstream>
#include <iostream>
#include <thread>

#include "dtensor/comm_backend.h"
#include "internal/attach_hint.h"

namespace dtensor {
namespace {

bool is_traced() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind("TracerPid:", 0) == 0) return std::stol(line.substr(10)) != 0;
  }
  return false;
}

// Also returns if the run failed; the barrier that follows then throws.
void wait_for_debugger(const Communicator& comm) {
  while (!is_traced()) {
    if (!backend_of(comm)->failure().empty()) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  std::raise(SIGTRAP);  // raised on this thread, so the debugger shows it
}

void check_rank(const Communicator& comm, int rank) {
  TORCH_CHECK(rank >= -1 && rank < comm.size(), "debug_rank: expected a rank in [0, ", comm.size(),
              "), or -1 for all ranks in turn, got ", rank);
}

}  // namespace

std::string attach_hint(const Communicator& comm, std::source_location where) {
  char host[256] = "";
  gethostname(host, sizeof host - 1);
  return c10::str("rank ", comm.rank(), " of ", comm.size(), " waits for a debugger at ", where.file_name(), ":",
                  where.line(), " in ", where.function_name(), " on ", host, ", process ", getpid(), ", thread ",
                  syscall(SYS_gettid), ": gdb -p ", getpid());
}

void debug_rank(const Communicator& comm, int rank, const std::function<void()>& stop, std::source_location where) {
  check_rank(comm, rank);
  const NoTimeout patience;
  const int first = rank == -1 ? 0 : rank, last = rank == -1 ? comm.size() - 1 : rank;
  for (int turn = first; turn <= last; ++turn) {
    if (comm.rank() == turn) {
      if (!stop) std::cerr << attach_hint(comm, where) << std::endl;
      stop ? stop() : wait_for_debugger(comm);
    }
    comm.barrier();
  }
}

}  // namespace dtensor
