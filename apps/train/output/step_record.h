// The result of a step, for outputs of programs that train.
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
  double loss = 0, grad_norm = 0, lr = 0, seconds = 0;  // Loss and norm are those before the step.
  BytesByAxis moved = {};                               // Bytes that this rank received from others, by mesh axis.
  std::vector<double> imbalance = {};        // For each layer of experts: the largest load of an expert over the mean.
  std::int64_t dropped = 0;                  // Tokens, over all layers and ranks.
  int stop_signal = 0;                       // The signal that stopped the run after this step.
  std::string content_hash = {};             // After the last step of a --bit-identical run: of parameters and states.
  std::string difference = {};               // Of a replay: the first result that differs from the recorded one.
  std::int64_t compared = 0, different = 0;  // Of a replay: results.
  std::string wrong_ranks = {};              // Found by --check-ranks.
  std::chrono::steady_clock::time_point start = {};
  // Of a pipeline, on this rank: a start time, and the times of actions relative to it.
  std::chrono::steady_clock::time_point began = {};
  std::vector<dtensor::pipeline::TimedAction> actions = {};
};

}  // namespace train
