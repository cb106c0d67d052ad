// Updates that were computed with other ranks, and their application to the parameters.
#pragma once

#include <vector>

#include "dtensor/optim/optimizer.h"

namespace dtensor::optim {

// An uninitialized buffer like this rank's local part of the entry's parameter. Outside the parameter's mesh: an empty
// tensor for placed().
at::Tensor local_buffer(const detail::SlotOptimizer::Entry& entry, at::ScalarType dtype);
// The filled buffer as a tensor with the parameter's placements and strides. It is copied if its strides differ.
at::Tensor placed(const at::Tensor& local, const detail::SlotOptimizer::Entry& entry);

// parameter = parameter (1 - decay) + factor * update; one foreach call for all parameters with equal decay and factor.
struct Update {
  at::Tensor parameter, update;
  double decay = 0, factor = 0;
};
void apply(const std::vector<Update>& updates);

}  // namespace dtensor::optim
