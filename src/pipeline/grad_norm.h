// Which parameters of which stage count in the norm over all stages, and at which index: every rank adds up the same
// list, in the model's order.
#pragma once

#include <map>
#include <unordered_set>

#include "dtensor/comm.h"
#include "pipeline/step.h"
#include "pipeline/tied_parameters.h"

namespace dtensor::pipeline {

// The list of norms of all parameters.
struct NormList {
  at::Tensor ends;          // of each stage's norms, for stages 0 to the last
  bool has_double = false;  // a parameter of any stage
};

// Collective over `line`. Throws on every rank if set_stage got no parameters for a stage, or regular tensors in a
// BitIdentical scope. `own`: this rank's stages, `stages`: those that were set.
NormList norm_list(const std::vector<int>& own, const std::map<int, Stage>& stages, int last, const Communicator& line,
                   c10::DeviceType device);

// Counts a parameter with several copies (shared by stages, or tied) once: the first in the model's order, on whichever
// rank.
class UniqueParameterCounter {
 public:
  // Collective over `line`.
  UniqueParameterCounter(const std::vector<TiedParameter>& tied, const std::map<int, Stage>& stages, int last,
                         const Communicator& line, c10::DeviceType device);
  // Called for each parameter of this rank's stages in the model's order.
  bool counts(const at::Tensor& parameter, int stage);
  // The parameters that counts() was called with, each once.
  const std::vector<at::Tensor>& parameters() const { return parameters_; }

 private:
  const std::vector<TiedParameter>& tied_;
  std::vector<std::int64_t> first_;  // by tied parameter: the stage that counts it; -1: counted
  std::unordered_set<const c10::TensorImpl*> seen_;
  std::vector<at::Tensor> parameters_;
};

}  // namespace dtensor::pipeline
