// A program of several ranks, started as users start it.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "faults/child.h"

namespace dtensor::faults {

enum class Backend : std::uint8_t { threads, sockets, mpi };
// Throws for another name.
Backend backend_of_name(const std::string& name);
const char* to_string(Backend backend);

class StartedJob {
 public:
  // `words`: the program and its arguments; it launches `ranks` ranks. What they print goes to `output` and, for
  // further processes, to `output`.1 and so on.
  StartedJob(const std::vector<std::string>& words, Backend backend, int ranks, std::string output);

  // Whether a process that was started here (a rank, mpirun) has ended.
  bool any_ended();
  // Waits until those and all that they started have ended, at most so many seconds; returns how many it took, those in
  // which this process was itself stopped not counted. None: some are left.
  std::optional<double> all_gone(double most);
  // SIGKILL, to the first process (mpirun) or to all.
  void kill_launcher() const;
  void kill_all() const;
  std::string output() const;

 private:
  std::vector<std::unique_ptr<Child>> children_;
  std::string output_;
};

}  // namespace dtensor::faults
