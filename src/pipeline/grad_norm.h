// Which parameter of which stage counts in the norm over all stages, and where: all ranks add up one list, the model's
// order.
#pragma once

#include <map>
#include <unordered_set>

#include "dtensor/comm.h"
#include "pipeline/step.h"
#include "pipeline/tied_parameters.h"

namespace dtensor::pipeline {

// Where each stage's norms end in the list, of stages 0 to `last`. Collective over `line`. Throws on every rank where
// the parameters of a stage were not told; `own`: this rank's stages, `stages`: those that were set.
at::Tensor norm_list_offsets(const std::vector<int>& own, const std::map<int, Stage>& stages, int last,
                             const Communicator& line, c10::DeviceType device);

// Of what is there several times (a parameter that stages share, or the copies of a tied one), the first in the model's
// order counts, whichever rank has it.
class UniqueParameterCounter {
 public:
  // Collective over `line`.
  UniqueParameterCounter(const std::vector<TiedParameter>& tied, const std::map<int, Stage>& stages, int last,
                         const Communicator& line, c10::DeviceType device);
  // Asked for each parameter of this rank's stages in the model's order.
  bool counts(const at::Tensor& parameter, int stage);
  // What it was asked, each once.
  const std::vector<at::Tensor>& parameters() const { return parameters_; }

 private:
  const std::vector<TiedParameter>& tied_;
  std::vector<std::int64_t> first_;  // by tied parameter: the stage that is to count it; -1: it has
  std::unordered_set<const c10::TensorImpl*> seen_;
  std::vector<at::Tensor> parameters_;
};

}  // namespace dtensor::pipeline
