// A trace of a run in Chrome's format (chrome://tracing, Perfetto): a process a rank, a slice an operator,
// redistribution or collective.
#pragma once

#include <chrono>
#include <string>

#include "dtensor/comm.h"
#include "dtensor/events.h"
#include "run.h"

namespace train {

// Records this thread's events while it lives. Times count from a barrier, so that ranks of several hosts line up.
class Trace {
 public:
  explicit Trace(const dtensor::Communicator& world);  // collective

  // The actions of a pipeline's step, in a row of their own.
  void add(const StepRecord& record);
  // Brings all ranks' slices to rank 0, which writes the file. Collective.
  void write(const std::string& path);

 private:
  void add(const dtensor::Event& event);
  void add_slice(const std::string& json);

  dtensor::Communicator world_;
  std::chrono::steady_clock::time_point start_;
  std::string slices_;  // JSON objects with commas between
  dtensor::EventListener listener_;
};

}  // namespace train
