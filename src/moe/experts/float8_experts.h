// Packed experts whose products are in float8 (dtensor/nn/float8.h).
#pragma once

#include <functional>
#include <vector>

#include "dtensor/comm.h"
#include "moe/experts/experts.h"

namespace dtensor::moe {

// Replaces numbers by their maxima over ranks, so that a scale is that of one device. Collective.
using MaxOverRanks = std::function<void(const at::Tensor& numbers)>;

// The maximum over each of these groups of ranks in turn; an undefined communicator is this rank alone.
MaxOverRanks max_over(std::vector<Communicator> groups);

// Whether products in float8 take these rows and weights, packed or of one expert: multiples of 16, and no float64.
bool fits_float8(const at::Tensor& x, const ExpertWeights& weights);

// As run_experts(). Rows have one scale for all experts of all ranks, `over_rows`; a weight has one for each expert,
// whose parts on several ranks `over_parts` covers.
at::Tensor run_float8_experts(const at::Tensor& x, at::IntArrayRef rows, const ExpertWeights& weights,
                              ExpertActivation activation, const MaxOverRanks& over_rows,
                              const MaxOverRanks& over_parts);

// As run_expert(), for regular tensors x [..., D].
at::Tensor run_float8_expert(const at::Tensor& x, const ExpertWeights& weights, ExpertActivation activation,
                             const MaxOverRanks& over_rows);

// The activation of an expert between its products: activation(gate) * up, without `up` if it is not gated.
at::Tensor activate_expert(const at::Tensor& gate, const at::Tensor& up, ExpertActivation activation);

}  // namespace dtensor::moe
