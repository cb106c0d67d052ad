// The training loop of the mixture of experts, on a mesh and on one device: the same loop over the same model.
#pragma once

#include <functional>
#include <vector>

#include "args.h"
#include "dtensor/comm.h"
#include "train/data.h"
#include "train/run.h"

namespace moe_example {

struct StepRecord {
  train::StepRecord step;
  std::vector<double> imbalance;  // of each layer: the largest load of an expert over the mean
  std::int64_t dropped = 0;       // entries, all layers and ranks
};

using OnStep = std::function<void(const StepRecord&)>;

// Collective over `world`. on_step is called on every rank.
std::vector<StepRecord> train_on_mesh(const dtensor::Communicator& world, const Options& options,
                                      const train::Corpus& corpus, const OnStep& on_step = {});
// Plain tensors, no mesh. The batch is summed in `pieces` parts, which changes rounding only.
std::vector<StepRecord> train_on_one_device(const Options& options, const train::Corpus& corpus, int pieces = 1);

}  // namespace moe_example
