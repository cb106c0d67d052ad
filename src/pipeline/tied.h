// Parameters that several stages use: copies on different ranks, whose gradients are summed once a step.
#pragma once

#include "dtensor/comm.h"
#include "dtensor/pipeline.h"

namespace dtensor::pipeline {

class TiedParameter {
 public:
  // Collective over `line`; `copies`: this rank's, maybe none.
  TiedParameter(const std::string& name, Communicator line, std::vector<at::Tensor> copies);
  // What earlier steps accumulated is summed already: it is put aside, and comes back with the new sum.
  void begin_step();
  // Collective over the ranks with copies.
  void end_step();
  bool is_copy(const at::Tensor& tensor) const;

 private:
  std::vector<at::Tensor> copies_, before_;
  Communicator holders_;
};

}  // namespace dtensor::pipeline
