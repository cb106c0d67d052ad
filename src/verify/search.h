// What a rule offers against what is true, for one sample on a one-dimensional mesh and without a communicator: every
// combination of Replicate and Shard operands is tried by slicing, running rank by rank and putting together.
#pragma once

#include <string>
#include <vector>

#include "dtensor/rule.h"
#include "verify/oracle.h"

namespace dtensor::verify {

using Report = RuleReport;

// `search`: look for what is not offered. That runs the operator on parts which do not belong together, and some
// kernels of ATen write past their results then: do it in a process that may die.
Report verify_sample(const Sample& sample, std::int64_t ranks, bool search);
// The decisions on a mesh of several dimensions, for some placements; wrong ones as text.
std::vector<std::string> verify_mesh(const Sample& sample, at::IntArrayRef mesh_shape, int tries);

}  // namespace dtensor::verify
