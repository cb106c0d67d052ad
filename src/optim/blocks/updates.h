// Steps that other ranks helped to compute, on their way back into the parameters.
#pragma once

#include <vector>

#include "dtensor/optim/optimizer.h"

namespace dtensor::optim {

// Room for this rank's part of a tensor like the entry's parameter. Outside its mesh: something for placed() to take.
at::Tensor local_buffer(const OptimizerEntry& entry, at::ScalarType dtype);
// That part, filled, as a tensor placed as the parameter: in another order of memory than the parameter's it is copied.
at::Tensor placed(const at::Tensor& local, const OptimizerEntry& entry);

// parameter = parameter (1 - decay) + factor * update; one list call for all parameters that share both numbers.
struct Update {
  at::Tensor parameter, update;
  double decay = 0, factor = 0;
};
void apply(const std::vector<Update>& updates);

}  // namespace dtensor::optim
