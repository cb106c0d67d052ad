// The training loop: batches in, a record of each step out. The one-device reference and the run on a mesh are the same
// loop over the same model; only where tensors live differs.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "args.h"
#include "data.h"
#include "dtensor/comm.h"
#include "dtensor/pipeline_schedule.h"
#include "memory.h"
#include "model.h"

namespace train {

using BytesByAxis = std::map<std::string, std::int64_t>;

struct StepRecord {
  std::int64_t step = 0, tokens = 0;
  double loss = 0, grad_norm = 0, lr = 0, seconds = 0;
  BytesByAxis moved = {};              // what this rank received from others, by mesh axis
  std::vector<double> imbalance = {};  // of each layer of experts: the largest load of one over the mean
  std::int64_t dropped = 0;            // entries, all layers and ranks
  int left_by = 0;                     // the signal on which the run was saved and left after this step
  std::chrono::steady_clock::time_point start = {};
  // Of a pipeline, on this rank: since when, and what it did in which of the seconds from then.
  std::chrono::steady_clock::time_point began = {};
  std::vector<dtensor::pipeline::TimedAction> actions = {};
};

using OnStep = std::function<void(const StepRecord&)>;

at::ScalarType scalar_type(Dtype dtype);
GptConfig gpt_config(const Options& options);

// Collective over `world`. on_step is called on every rank; `memory`, where given, is filled with this rank's.
std::vector<StepRecord> train_on_mesh(const dtensor::Communicator& world, const Options& options, const Corpus& corpus,
                                      const OnStep& on_step, MemoryUse* memory = nullptr);

// Rows of the pieces that the run takes its batch in: --grad-accum of them, each in the microbatches of its pipeline.
std::vector<std::int64_t> pieces_of_batch(const Options& options);

// Plain tensors, no mesh. With dropout: a mesh of one rank, since ATen's own generator numbers by order of calls. The
// batch is summed in `pieces` parts, which changes rounding only; 0: in those of the run, for losses of a router and
// whatever else is no sum over pieces.
std::vector<StepRecord> train_on_one_device(const Options& options, const Corpus& corpus, std::int64_t pieces = 1);

}  // namespace train
