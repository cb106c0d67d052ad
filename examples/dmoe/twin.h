// A dropless mixture of experts beside its formulas in plain ATen: hidden and ffn 256, 8 experts, top 2 with normalised
// weights, GLU experts (w1, v1, w2) with exact GELU and no bias, parameters uniform in (-1, 1), [2, 3, 256] a rank.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "dtensor/comm.h"

namespace dmoe {

constexpr int kSteps = 3;

// Where parameters live.
enum class Variant {
  one_device,     // the formulas, on the batch of all ranks
  data_parallel,  // the formulas, on this rank's part; gradients are summed
  two_axes,       // weight_parallel x expert_parallel: experts split, the router whole over expert_parallel
  one_mesh,       // all parameters Shard(0) on one axis, gathered where they are used
  slices,  // experts on the slice expert_parallel, the router Shard(0) on the slice weight_parallel: this rank alone
};
const std::vector<Variant>& distributed_variants();
std::string name_of(Variant form);

// A run of kSteps steps with clipping to norm 1 and AdamW; everything whole, in double.
struct TrainingRun {
  std::vector<at::Tensor> outputs;                // of each step
  std::vector<at::Tensor> gradients, parameters;  // router, w1, w2, v1: of the first step; after the last
  std::vector<double> norms;                      // of each step, before clipping
};
// The number of ranks must divide 8. `ranks` for one_device: how many parts its batch has. Collective.
TrainingRun run(const dtensor::Communicator& world, Variant form, at::ScalarType dtype);

// Largest relative differences (of norms of tensors) from a reference.
struct Difference {
  double output = 0, gradient = 0, norm = 0, parameter = 0;
  double largest() const;
};
Difference difference(const TrainingRun& course, const TrainingRun& reference);
double bound(at::ScalarType dtype);  // for the largest

}  // namespace dmoe
