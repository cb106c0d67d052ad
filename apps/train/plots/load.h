// Load of the experts: counted over ranks in each step, shown in the table and in a plot.
#pragma once

#include "dtensor/moe.h"
#include "train/output/progress.h"
#include "train/run.h"

namespace train {

// The load of a step, over all parts of its batch, all ranks and all stages.
class LoadCount {
 public:
  explicit LoadCount(Gpt& model);
  // Adds the last forward pass of the layers in `part`: the model, or the part of it that this rank runs.
  void add(dtensor::nn::Module& part);
  // Writes the load to the record and resets it, in one collective. `repeated`: the number of ranks that count each
  // token.
  void finish(const dtensor::Communicator& world, std::int64_t repeated, StepRecord& record);

 private:
  std::vector<dtensor::MixtureOfExperts*> layers_;
  at::Tensor table_;  // int64 [layers, experts + 1]: tokens of each expert, and dropped ones.
};

// Rows about the experts, and the plot of --load-plot if requested.
Table load_table(const Options& options, const std::vector<StepRecord>& records);
// How often rank 0 took the fast paths.
Table counters_table(const dtensor::MoeCounters& counters);
void write_load(const Options& options, const std::vector<StepRecord>& records);

}  // namespace train
