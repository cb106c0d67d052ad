// The load of the experts over a run: counted over ranks each step, shown in the table and in a picture.
#pragma once

#include "dtensor/moe/counters.h"
#include "progress.h"
#include "run.h"

namespace train {

// Of the last forward pass, over all ranks, in one collective. `repeated`: how many ranks count each token. `world`
// empty: one device.
void add_load(Gpt& model, const dtensor::Communicator& world, std::int64_t repeated, StepRecord& record);

// Rows about the experts, and the picture of --load-plot where it was asked for.
Table load_table(const Options& options, const std::vector<StepRecord>& records);
// How often rank 0 took the ways that save work.
Table counters_table(const dtensor::MoeCounters& counters);
void write_load(const Options& options, const std::vector<StepRecord>& records);

}  // namespace train
