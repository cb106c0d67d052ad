// One signal handler per process, set once: changing it around each wait would overwrite handlers of the program.
#include "comm/p2p/job/termination.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <exception>

namespace dtensor::p2p {
namespace {

volatile sig_atomic_t termination_requested = 0;
std::atomic<int> waits{0};
static_assert(std::atomic<int>::is_always_lock_free);
char line[256] = "";  // for the handler, which may call functions without locks only

void reraise_default() {
  signal(SIGTERM, SIG_DFL);
  raise(SIGTERM);
}

void on_termination_signal(int) {
  [[maybe_unused]] const auto written =
      termination_requested != 0 ? 0 : ::write(STDERR_FILENO, line, std::strlen(line));
  termination_requested = 1;
  if (waits.load() == 0) reraise_default();
}

bool is_set_to(void (*handler)(int)) {
  struct sigaction now = {};
  return sigaction(SIGTERM, nullptr, &now) == 0 && (now.sa_flags & SA_SIGINFO) == 0 && now.sa_handler == handler;
}

}  // namespace

void watch_for_termination(bool watch) {
  if (watch && is_set_to(SIG_DFL)) signal(SIGTERM, on_termination_signal);
  if (!watch && line[0] == 0 && is_set_to(on_termination_signal)) signal(SIGTERM, SIG_DFL);
}

void print_at_termination(const std::string& text) {
  std::strncpy(line, text.c_str(), sizeof line - 1);
  watch_for_termination(true);
}

TerminationWatch::TerminationWatch() { ++waits; }

// Handles a request that arrived during a wait that succeeded.
TerminationWatch::~TerminationWatch() {
  if (--waits == 0 && termination_requested != 0 && std::uncaught_exceptions() == 0) reraise_default();
}

bool TerminationWatch::requested() { return termination_requested != 0; }

}  // namespace dtensor::p2p
