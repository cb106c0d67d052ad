// What a step came to, as programs that train tell of it.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "dtensor/pipeline_schedule.h"

namespace train {

using BytesByAxis = std::map<std::string, std::int64_t>;

struct StepRecord {
  std::int64_t step = 0, tokens = 0;
  double loss = 0, grad_norm = 0, lr = 0, seconds = 0;  // the first two of before the step
  BytesByAxis moved = {};                               // what this rank received from others, by mesh axis
  std::vector<double> imbalance = {};  // of each layer of experts: the largest load of one over the mean
  std::int64_t dropped = 0;            // entries, all layers and ranks
  int stop_signal = 0;                 // the signal on which the run was saved and left after this step
  std::chrono::steady_clock::time_point start = {};
  // Of a pipeline, on this rank: since when, and what it did in which of the seconds from then.
  std::chrono::steady_clock::time_point began = {};
  std::vector<dtensor::pipeline::TimedAction> actions = {};
};

}  // namespace train
