// A request to leave: SIGTERM (what a scheduler sends before it takes the machine) and SIGUSR1 (what it can be told to
// send earlier). The handler only notes it; the run looks between steps.
#pragma once

#include <csignal>
#include <string>

namespace train {

// Exit status of a run that saves (--save) and was asked to leave by SIGTERM or SIGUSR1: it saved after the step under
// way, and --resume goes on.
inline constexpr int kExitRequeue = 75;  // EX_TEMPFAIL of sysexits.h: to be tried again

// Notes the signals while it lives, for the whole process; one at a time.
class TerminationSignals {
 public:
  TerminationSignals();
  TerminationSignals(const TerminationSignals&) = delete;
  TerminationSignals& operator=(const TerminationSignals&) = delete;
  ~TerminationSignals();

  static int received();  // the last one; 0: none, or nobody listens
  static std::string name(int signal);

 private:
  struct sigaction term_ = {}, usr1_ = {};
};

}  // namespace train
