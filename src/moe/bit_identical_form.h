// MixtureOfExperts in a BitIdentical scope: what has a form, and in which order tokens must be.
#pragma once

#include "dtensor/moe/layer.h"
#include "moe/token_mapping.h"

namespace dtensor::moe {

// Throws unless a call of the layer in the scope has a bit-identical form. `parallel`: null on one rank.
void check_bit_identical_form(const MixtureOfExperts& layer, const at::Tensor& x, const Dispatcher& dispatcher,
                              const MixtureOfExperts::Parallel* parallel);

// Throws unless the rows of experts arrive in the order of one device. Collective. `tokens`: number on this rank.
void check_tokens_in_order(const MixtureOfExperts::Parallel& parallel, const TokenMapping& mapping,
                           std::int64_t tokens);

// The gate's weight for tokens that are a DTensor: a regular one counts as Replicate.
at::Tensor gate_beside(const at::Tensor& weight, const DeviceMesh& mesh);

}  // namespace dtensor::moe
