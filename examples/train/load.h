// The load of the experts over a run: counted over ranks each step, shown in the table and in a plot.
#pragma once

#include "dtensor/moe.h"
#include "progress.h"
#include "run.h"

namespace train {

// The load of a step, over all pieces of its batch, all ranks and all stages.
class LoadCount {
 public:
  explicit LoadCount(Gpt& model);
  // The last forward pass of the layers in `part`: the model, or a part of it that this rank runs.
  void add(dtensor::nn::Module& part);
  // Into the record, and begins anew; one collective. `repeated`: how many ranks count each token.
  void finish(const dtensor::Communicator& world, std::int64_t repeated, StepRecord& record);

 private:
  std::vector<dtensor::MixtureOfExperts*> layers_;
  at::Tensor table_;  // int64 [layers, experts + 1]: entries of each expert, and dropped ones
};

// Rows about the experts, and the plot of --load-plot where it was asked for.
Table load_table(const Options& options, const std::vector<StepRecord>& records);
// How often rank 0 took the ways that save work.
Table counters_table(const dtensor::MoeCounters& counters);
void write_load(const Options& options, const std::vector<StepRecord>& records);

}  // namespace train
