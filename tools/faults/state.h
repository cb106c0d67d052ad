// A training state with known content at each step, so that a loaded state can be checked without the run that saved
// it.
#pragma once

#include <string>
#include <vector>

#include "dtensor/checkpoint.h"
#include "dtensor/mesh.h"

namespace dtensor::faults {

class KnownState {
 public:
  // `rows` of the largest tensor, which has 64 columns of float. Starts at step 0.
  KnownState(const DeviceMesh& mesh, std::int64_t rows);
  KnownState(const KnownState&) = delete;
  KnownState& operator=(const KnownState&) = delete;

  void go_to(std::int64_t step);
  // Empty if all values are bit-equal to those of its step; otherwise a description of the difference. Collective.
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
