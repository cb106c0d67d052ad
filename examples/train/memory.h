// What a rank's memory goes to in a training step: as fully_shard predicts it, and as it turned out to be.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "dtensor/fully_shard.h"

namespace train {

struct MemoryUse {
  dtensor::FsdpMemory predicted, measured;  // bytes
  std::int64_t resident_before = 0;         // of this process, at its highest: before training, and after
  std::int64_t resident = 0;
  int ranks_here = 1;  // in this process

  // Two states a parameter, one for sgd; what Shampoo and Muon keep is another amount.
  void predict(const std::vector<dtensor::FsdpUnit>& units, const std::string& optimizer);
  // Between backward and the optimizer's step, when gradients are all there.
  void measure_parameters(const dtensor::NamedTensors& parameters);
  void measure_peaks(const dtensor::FsdpStats& stats, int ranks);
};

}  // namespace train
