// A training state whose content at each step is known in advance, so that whatever is loaded can be told right or
// wrong without the run that saved it.
#pragma once

#include <string>
#include <vector>

#include "dtensor/checkpoint.h"
#include "dtensor/mesh.h"

namespace dtensor::faults {

class KnownState {
 public:
  // `rows` of the largest tensor, which has 64 columns of float. At step 0.
  KnownState(const DeviceMesh& mesh, std::int64_t rows);
  KnownState(const KnownState&) = delete;
  KnownState& operator=(const KnownState&) = delete;

  void go_to(std::int64_t step);
  // Empty where everything, bit by bit, is that of the step that it says; else what is not. Collective.
  std::string problem() const;
  std::int64_t step() const { return step_; }
  Checkpoint& checkpoint() { return checkpoint_; }

 private:
  std::int64_t rows_, step_ = 0;
  double rate_ = 0;
  std::string note_;
  std::vector<std::pair<std::string, at::Tensor>> tensors_;
  Checkpoint checkpoint_;
};

}  // namespace dtensor::faults
