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

// Why gradients of microbatches are not those of a batch: a literal for refuse_microbatches(), or null. `tokens`: of
// the call.
const char* obstacle_to_microbatches(const MixtureOfExperts& layer, const Dispatcher& dispatcher, std::int64_t tokens);

// The routing of this rank's tokens. The gate multiplies x [..., D] as it is, whose sequences end the blocks of its
// gradient. A regular weight counts as Replicate.
Routing route_tokens(const at::Tensor& x, const at::Tensor& gate, const RouterOptions& options,
                     const TokenMapping& mapping, const at::Tensor& bias);

}  // namespace dtensor::moe
