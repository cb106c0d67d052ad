// Termination signals: SIGTERM (which a scheduler sends before it ends a job) and SIGUSR1 (which it can send earlier).
// The handler only records the signal; the run checks between steps.
#pragma once

#include <csignal>
#include <string>

namespace train {

// Exit status of a run with --save that SIGTERM or SIGUSR1 stopped: it was saved after the current step, and --resume
// continues it.
inline constexpr int kExitRequeue = 75;  // EX_TEMPFAIL of sysexits.h: try again.

// Records the signals during its lifetime, for the process; at most one object may exist.
class TerminationSignals {
 public:
  TerminationSignals();
  TerminationSignals(const TerminationSignals&) = delete;
  TerminationSignals& operator=(const TerminationSignals&) = delete;
  ~TerminationSignals();

  static int received();  // The last one; 0: none, or no object exists.
  static std::string name(int signal);

 private:
  struct sigaction term_ = {}, usr1_ = {};
};

}  // namespace train
