// `llm generate`: token by token, with a cache of keys and values.
#pragma once

#include <functional>

#include "args.h"
#include "model.h"

namespace llm {

// One token for logits [vocabulary] on the CPU: the likeliest, or drawn by a number that depends on the seed and on
// `position` alone.
std::int64_t pick(const at::Tensor& logits, const SampleOptions& options, std::int64_t position);

// The new tokens, the same on every rank; `on_token` hears of each as it comes. Rank 0 of `world` picks. Ends early
// with one of `ends`, which is the last one then. Collective.
std::vector<std::int64_t> generate(const Model& model, const dtensor::Communicator& world,
                                   const std::vector<std::int64_t>& prompt, const SampleOptions& options,
                                   const std::vector<std::int64_t>& ends,
                                   const std::function<void(std::int64_t)>& on_token = {});

}  // namespace llm
