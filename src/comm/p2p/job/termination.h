// How waits handle the launcher's request to end.
#pragma once

#include <string>

namespace dtensor::p2p {

// Starts or stops handling SIGTERM in this process. A handler of the program, or SIG_IGN, is kept whenever it was set:
// then the program handles the signal, and waits continue.
void watch_for_termination(bool watch);

// From here on SIGTERM prints this line on stderr, then acts as without it. No effect if the program has its own
// handler.
void print_at_termination(const std::string& line);

// During its lifetime, SIGTERM is recorded instead of ending the process, so that a wait can report its position.
// Launchers send it when they are interrupted or lose a rank. No effect if the program has its own handler.
class TerminationWatch {
 public:
  TerminationWatch();
  ~TerminationWatch();
  TerminationWatch(const TerminationWatch&) = delete;
  TerminationWatch& operator=(const TerminationWatch&) = delete;
  static bool requested();
};

}  // namespace dtensor::p2p
