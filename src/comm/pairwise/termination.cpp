// One handler for the process, set once: changing it around each wait would undo what the program sets meanwhile.
#include "comm/pairwise/termination.h"

#include <signal.h>

#include <atomic>
#include <exception>

namespace dtensor::pairwise {
namespace {

volatile sig_atomic_t requested_to_end = 0;
std::atomic<int> waits{0};
static_assert(std::atomic<int>::is_always_lock_free);

void obey() {
  signal(SIGTERM, SIG_DFL);
  raise(SIGTERM);
}

void hear_termination(int) {
  requested_to_end = 1;
  if (waits.load() == 0) obey();
}

bool is_set_to(void (*handler)(int)) {
  struct sigaction now = {};
  return sigaction(SIGTERM, nullptr, &now) == 0 && (now.sa_flags & SA_SIGINFO) == 0 && now.sa_handler == handler;
}

}  // namespace

void watch_for_termination(bool watch) {
  if (watch && is_set_to(SIG_DFL)) signal(SIGTERM, hear_termination);
  if (!watch && is_set_to(hear_termination)) signal(SIGTERM, SIG_DFL);
}

TerminationWatch::TerminationWatch() { ++waits; }

// A request that came while the wait ended well.
TerminationWatch::~TerminationWatch() {
  if (--waits == 0 && requested_to_end != 0 && std::uncaught_exceptions() == 0) obey();
}

bool TerminationWatch::requested() { return requested_to_end != 0; }

}  // namespace dtensor::pairwise
