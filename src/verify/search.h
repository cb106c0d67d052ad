// Compares the strategies that a rule offers with the correct ones, for one sample on a one-dimensional mesh without a
// communicator. It tries each combination of Replicate and Shard operands by slicing, running rank by rank and
// assembling.
#pragma once

#include <string>
#include <vector>

#include "dtensor/rule.h"
#include "verify/oracle.h"

namespace dtensor::verify {

using Report = RuleReport;

// `search` also looks for correct strategies that are not offered. This runs the operator on parts that do not fit
// together, so some ATen kernels write out of bounds: use a process that may crash.
Report verify_sample(const Sample& sample, std::int64_t ranks, bool search);
// Verifies decisions on a mesh of several dimensions for some placements. Returns wrong ones as text.
std::vector<std::string> verify_mesh(const Sample& sample, at::IntArrayRef mesh_shape, int tries);

}  // namespace dtensor::verify
