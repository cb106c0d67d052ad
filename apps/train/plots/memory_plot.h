// Plot of a step's memory on one rank by kind, from the first operator of forward to the optimizer.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "dtensor/debug.h"
#include "dtensor/events.h"
#include "dtensor/fully_shard.h"
#include "dtensor/tensor.h"

namespace train {

struct MemorySample {
  double seconds = 0;  // Since the step began.
  dtensor::Phase phase = dtensor::Phase::forward;
  // Bytes. Gradients: reduced ones and those that are not reduced yet. Rest: activations and temporaries of operators.
  std::int64_t parameters = 0, optimizer = 0, gradients = 0, gathered = 0, rest = 0;
};

// Samples this rank's memory, on this thread, at each operator of the engine during its lifetime.
class MemoryRecord {
 public:
  // `counts`: one unit of each schedule of units; none if parameters are gathered separately. `optimizer`: bytes of its
  // states.
  MemoryRecord(const dtensor::NamedTensors& parameters, std::vector<dtensor::FsdpUnit> counts, std::int64_t optimizer);
  const std::vector<MemorySample>& samples() const { return samples_; }

 private:
  void add(dtensor::Phase phase);

  std::vector<at::Tensor> parameters_;
  std::vector<dtensor::FsdpUnit> counts_;
  std::int64_t parameter_bytes_ = 0, optimizer_ = 0, gradients_before_ = 0;
  bool adding_ = false;  // Prevents recursion: reading a DTensor is an operator too.
  std::chrono::steady_clock::time_point begin_;
  std::vector<MemorySample> samples_;
  dtensor::MemoryTimeline timeline_;
  dtensor::EventListener listener_;
};

struct MemoryPanel {
  std::string title;
  std::vector<MemorySample> samples;
};

// One panel for each run, two in a row, on one scale: memory by kind over the time of a step, stacked, with the bytes
// of each kind at the peak.
std::string memory_svg(const std::vector<MemoryPanel>& panels);

}  // namespace train
