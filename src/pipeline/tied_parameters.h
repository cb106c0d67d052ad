// Parameters that several stages use: copies on different ranks, whose gradients are summed once per step.
#pragma once

#include "dtensor/comm.h"
#include "dtensor/pipeline.h"

namespace dtensor::pipeline {

class TiedParameter {
 public:
  // Collective over `line`. `copies`: this rank's, possibly none.
  TiedParameter(std::string name, Communicator line, const std::vector<at::Tensor>& copies);
  // Stashes gradients of earlier steps, which are summed already. end_step() adds the new sum to them.
  void begin_step();
  // Collective over the ranks with copies, and over the copies' mesh. Defers the sum if gradients are reduced in a
  // later step.
  void end_step();
  // Called instead after an exception: restores the stashed gradients and discards those of the step.
  void abandon_step();
  bool is_copy(const at::Tensor& tensor) const;
  const std::string& name() const { return name_; }

 private:
  void sum_up();

  std::string name_;
  std::vector<at::Tensor> copies_, before_;  // each copy once
  bool first_ = false;                       // the first of the ranks with copies
  bool stashed_ = false;                     // before_ must be restored
  bool waits_ = false;                       // each copy has its own summand
  Communicator holders_;
};

}  // namespace dtensor::pipeline
