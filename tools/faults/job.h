// A program with several ranks, started as users start it.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "faults/child.h"

namespace dtensor::faults {

enum class Backend : std::uint8_t { threads, sockets, mpi };
// Throws for an unknown name.
Backend backend_of_name(const std::string& name);
const char* to_string(Backend backend);

class StartedJob {
 public:
  // `words`: the program and its arguments; it launches `ranks` ranks. Output is written to `output` and, for further
  // processes, to `output`.1 etc.
  StartedJob(const std::vector<std::string>& words, Backend backend, int ranks, std::string output);

  // Whether a process that was started here (a rank, mpirun) has ended.
  bool any_ended();
  // Waits until these processes and their children have ended, for at most `most` seconds. Returns the seconds that it
  // took, without those in which this process was stopped. Returns nothing if processes are left.
  std::optional<double> all_gone(double most);
  // Send SIGKILL to the first process (mpirun) or to all.
  void kill_launcher() const;
  void kill_all() const;
  std::string output() const;

 private:
  std::vector<std::unique_ptr<Child>> children_;
  std::string output_;
};

}  // namespace dtensor::faults
