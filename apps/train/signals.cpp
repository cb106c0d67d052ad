// sigaction, and a lock-free number that a handler may write.
#include "signals.h"

#include <atomic>

namespace train {
namespace {

std::atomic<int> received_signal{0};
static_assert(std::atomic<int>::is_always_lock_free);

void note(int signal) { received_signal = signal; }

}  // namespace

TerminationSignals::TerminationSignals() {
  received_signal = 0;
  struct sigaction mine = {};
  mine.sa_handler = note;
  mine.sa_flags = SA_RESTART;
  sigaction(SIGTERM, &mine, &term_);
  sigaction(SIGUSR1, &mine, &usr1_);
}

TerminationSignals::~TerminationSignals() {
  sigaction(SIGTERM, &term_, nullptr);
  sigaction(SIGUSR1, &usr1_, nullptr);
  received_signal = 0;
}

int TerminationSignals::received() { return received_signal; }

std::string TerminationSignals::name(int signal) {
  if (signal == SIGTERM) return "SIGTERM";
  return signal == SIGUSR1 ? "SIGUSR1" : "signal " + std::to_string(signal);
}

}  // namespace train
