// sigaction, and a number without a lock, which a handler may write.
#include "signals.h"

#include <atomic>

namespace train {
namespace {

std::atomic<int> noted{0};
static_assert(std::atomic<int>::is_always_lock_free);

void note(int signal) { noted = signal; }

}  // namespace

LeaveSignals::LeaveSignals() {
  noted = 0;
  struct sigaction mine = {};
  mine.sa_handler = note;
  mine.sa_flags = SA_RESTART;
  sigaction(SIGTERM, &mine, &term_);
  sigaction(SIGUSR1, &mine, &usr1_);
}

LeaveSignals::~LeaveSignals() {
  sigaction(SIGTERM, &term_, nullptr);
  sigaction(SIGUSR1, &usr1_, nullptr);
  noted = 0;
}

int LeaveSignals::received() { return noted; }

std::string LeaveSignals::name(int signal) {
  if (signal == SIGTERM) return "SIGTERM";
  return signal == SIGUSR1 ? "SIGUSR1" : "signal " + std::to_string(signal);
}

}  // namespace train
