// A dropless mixture of experts and its formulas in ATen: hidden and ffn 256, 8 experts, top 2 with normalized weights.
// Experts are GLU (w1, v1, w2) with exact GELU and no bias. Parameters are uniform in (-1, 1), input is [2, 3, 256] for
// each rank.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/TensorOptions.h>

#include <string>
#include <vector>

#include "dtensor/comm.h"

namespace dmoe {

constexpr int kSteps = 3;

// Placements of the parameters.
enum class Variant {
  one_device,     // The formulas, on the batch of all ranks.
  data_parallel,  // The formulas, on this rank's batch; gradients are summed.
  two_axes,       // weight_parallel x expert_parallel: experts split, router replicated over expert_parallel.
  one_mesh,       // All parameters Shard(0) on one axis, gathered where they are used.
  slices,         // Experts on the slice expert_parallel, the router Shard(0) on the slice weight_parallel.
};
const std::vector<Variant>& distributed_variants();
std::string name_of(Variant form);

// Results of kSteps steps with clipping to norm 1 and AdamW: full tensors in double.
struct TrainingRun {
  std::vector<at::Tensor> outputs;                // Of each step.
  std::vector<at::Tensor> gradients, parameters;  // Router, w1, w2, v1: of the first step; after the last.
  std::vector<double> norms;                      // Of each step, before clipping.
};
// The number of ranks must divide 8. one_device splits its batch into as many parts as ranks. `options` has the dtype
// and the device. Collective.
TrainingRun run(const dtensor::Communicator& world, Variant form, const at::TensorOptions& options);

// Largest relative differences (of norms of tensors) from a reference.
struct Difference {
  double output = 0, gradient = 0, norm = 0, parameter = 0;
  double largest() const;
};
Difference difference(const TrainingRun& course, const TrainingRun& reference);
double bound(at::ScalarType dtype);  // Bound for the largest difference.

}  // namespace dmoe
