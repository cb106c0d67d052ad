// A trace of a run in Chrome's format (chrome://tracing, Perfetto). Each rank is a process with rows of operators,
// redistributions and collectives, of steps, of phases, of modules and of pipeline actions. Arrows connect the members
// of a collective; a counter shows the memory of each rank.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "dtensor/comm.h"
#include "dtensor/debug.h"
#include "dtensor/events.h"
#include "train/run.h"

namespace train {

// Records this thread's events during its lifetime. Times are relative to a barrier, so that ranks on several hosts
// align.
class Trace {
 public:
  explicit Trace(const dtensor::Communicator& world);  // Collective.

  // Adds a step with its phases and, in a pipeline, its actions. Steps must be added in order.
  void add(const StepRecord& record);
  // Gathers the slices of all ranks on rank 0, which writes the file. Collective.
  void write(const std::string& path);

 private:
  using Time = std::chrono::steady_clock::time_point;
  // An interval in which a phase or module ran without interruption.
  struct Span {
    std::string name;
    Time begin, end;
  };

  void add(const dtensor::Event& event);
  void add_flow(const dtensor::Event& event);
  void add_phases(const StepRecord& record, Time end);
  void add_slice(int row, const std::string& name, Time begin, Time end);
  void add_json(const std::string& json);
  static void extend(std::vector<Span>& spans, const std::string& name, const dtensor::Event& event);
  double microseconds(Time time) const;

  dtensor::Communicator world_;
  Time start_;
  std::string slices_;  // JSON objects with commas between.
  std::vector<Span> phases_, modules_;
  dtensor::MemoryTimeline memory_;
  dtensor::CommDebugMode modules_of_backward_;
  dtensor::EventListener listener_;
};

}  // namespace train
