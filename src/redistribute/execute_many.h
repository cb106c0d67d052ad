// Several plans at once, for the operands of one list operator: their collectives are packed, one for each kind, mesh,
// group of axes and dtype, instead of one for each tensor.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "redistribute/plan/plan.h"

namespace dtensor {

// One tensor on its way: `local` as execute_plan takes it, and afterwards as execute_plan returns it, bit for bit.
struct Journey {
  const RedistributePlan* plan = nullptr;
  const TensorSpec* from = nullptr;
  at::Tensor local;
};

// Collective over the meshes of the journeys, which every member gives in the same order. Results may share memory that
// is one block for all of them.
void execute_plans(std::vector<Journey>& journeys);

}  // namespace dtensor
