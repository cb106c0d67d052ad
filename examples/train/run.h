// The training loop: batches in, a record of each step out. The one-device reference and the run on a mesh are the same
// loop over the same model; only where tensors live differs.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "args.h"
#include "data.h"
#include "dtensor/comm.h"
#include "memory.h"
#include "model.h"
#include "step_record.h"

namespace train {

using OnStep = std::function<void(const StepRecord&)>;

at::ScalarType scalar_type(Dtype dtype);
GptConfig gpt_config(const Options& options);

// Collective over `world`. on_step is called on every rank; `memory`, where given, is filled with this rank's.
std::vector<StepRecord> train_on_mesh(const dtensor::Communicator& world, const Options& options, const Corpus& corpus,
                                      const OnStep& on_step, MemoryUse* memory = nullptr);

// Rows of the pieces that the run takes its batch in: --grad-accum of them, each in the microbatches of its pipeline.
std::vector<std::int64_t> pieces_of_batch(const Options& options);

// Plain tensors, no mesh. Where a step draws random numbers (dropout, a router's jitter): a mesh of one rank, since
// ATen's own generator numbers by order of calls. The batch is summed in `pieces` parts, which changes rounding only;
// 0: in those of the run, for losses of a router and whatever else is no sum over pieces.
std::vector<StepRecord> train_on_one_device(const Options& options, const Corpus& corpus, std::int64_t pieces = 1);

}  // namespace train
