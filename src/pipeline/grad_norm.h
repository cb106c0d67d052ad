// The norm over all stages: every rank adds up the same list of sums of squares, in the model's order.
#pragma once

#include <map>
#include <vector>

#include "dtensor/comm.h"
#include "dtensor/mesh.h"
#include "pipeline/step.h"
#include "pipeline/tied_parameters.h"

namespace dtensor::pipeline {

// The stages of a model, of which this rank has `own`.
struct ModelStages {
  const std::vector<int>& own;
  const std::map<int, Stage>& stages;  // those that were set
  const std::vector<TiedParameter>& tied;
  int last;                  // number of the last stage
  const Communicator& line;  // the ranks that share the model
  c10::DeviceType device;    // of the parameters
  const DeviceMesh& slice;   // of a stage of this rank; undefined if it has one rank
};

// Pipeline::clip_grad_norm_() on a member of the mesh. Throws on every rank if set_stage got no parameters for a stage,
// or regular tensors in a BitIdentical scope.
at::Tensor clip_grad_norm_(const ModelStages& model, double max_norm);

}  // namespace dtensor::pipeline
