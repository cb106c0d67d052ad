// The training loop: batches in, a record of each step out. The one-device reference and the run on a mesh use the same
// loop and the same model, with different placements.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "args.h"
#include "dtensor/comm.h"
#include "train/data/data.h"
#include "train/layouts/memory.h"
#include "train/model/model.h"
#include "train/output/step_record.h"

namespace train {

using OnStep = std::function<void(const StepRecord&)>;

at::ScalarType scalar_type(Dtype dtype);
GptConfig gpt_config(const Options& options);

// Collective over `world`. Calls on_step on every rank. Fills `memory`, if not null, for this rank.
std::vector<StepRecord> train_on_mesh(const dtensor::Communicator& world, const Options& options, const Corpus& corpus,
                                      const OnStep& on_step, MemoryUse* memory = nullptr);

// Rows of the parts of a batch: --grad-accum of them, each in the microbatches of its pipeline.
std::vector<std::int64_t> pieces_of_batch(const Options& options);

// Regular tensors, no mesh. If a step draws random numbers (dropout, jitter), uses a mesh of one rank, since ATen's
// generator depends on the order of calls. The batch is summed in `pieces` parts, which changes rounding only. 0 uses
// the parts of the run, for losses that are not sums over parts.
std::vector<StepRecord> train_on_one_device(const Options& options, const Corpus& corpus, std::int64_t pieces = 1,
                                            const OnStep& on_step = {});

}  // namespace train
