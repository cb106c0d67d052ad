// The launcher's request to end, as waits see it.
#pragma once

namespace dtensor::p2p {

// Begins or ends to look at SIGTERM, in the whole process. A handler of the program's own, or its wish to ignore the
// signal, is left alone, whenever it was set: then it is the program that is asked to end, and waits go on.
void watch_for_termination(bool watch);

// While it lives, a request to end (SIGTERM: the launcher sends it where it was interrupted or has lost a rank) is
// noted instead of obeyed at once, so that a wait can say where it was. Only where the program has no handler of its
// own.
class TerminationWatch {
 public:
  TerminationWatch();
  ~TerminationWatch();
  TerminationWatch(const TerminationWatch&) = delete;
  TerminationWatch& operator=(const TerminationWatch&) = delete;
  static bool requested();
};

}  // namespace dtensor::p2p
