// The replay of a trace on a stream of operators and on one stream of collectives for each mesh axis.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "dtensor/estimate.h"

namespace dtensor {

// What a stream does for a while, in seconds since the begin of the step.
struct ReplaySlice {
  std::string stream;  // "" of operators and waits, else the mesh axis
  std::string name;    // operator or collective
  double begin = 0, end = 0;
  bool wait = false;
  std::int64_t event = 0;  // index into StepTrace::events; of a wait: of its collective, -1 at the end of the step
};
struct ReplayTimeline {
  StepEstimate estimate;
  std::vector<ReplaySlice> slices;
  std::vector<double> times;  // of each event of the trace
};
ReplayTimeline replay(const StepTrace& trace, const HardwareModel& hardware);

}  // namespace dtensor
