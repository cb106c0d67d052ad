// Parameters that several stages use: copies on different ranks, whose gradients are summed once a step.
#pragma once

#include "dtensor/comm.h"
#include "dtensor/pipeline.h"

namespace dtensor::pipeline {

class TiedParameter {
 public:
  // Collective over `line`; `copies`: this rank's, maybe none.
  TiedParameter(std::string name, Communicator line, const std::vector<at::Tensor>& copies);
  // What earlier steps accumulated is summed already: it is put aside, and comes back with the new sum.
  void begin_step();
  // Collective over the ranks with copies, and over the copies' mesh. Where gradients wait for a later step, the sum
  // over the copies does.
  void end_step();
  // Instead, after an exception: what was put aside comes back, without what the step has made.
  void abandon_step();
  bool is_copy(const at::Tensor& tensor) const;
  const std::string& name() const { return name_; }

 private:
  void sum_up();

  std::string name_;
  std::vector<at::Tensor> copies_, before_;  // each copy once
  bool first_ = false;                       // of the ranks with copies
  bool stashed_ = false;                     // before_ is to come back
  bool waits_ = false;                       // each copy has its own part of a sum
  Communicator holders_;
};

}  // namespace dtensor::pipeline
