// `llm generate`: one token at a time, with a cache of keys and values.
#pragma once

#include <functional>

#include "llm/args.h"
#include "llm/model.h"

namespace llm {

// One token for logits [vocabulary] on the CPU: the most likely one, or one drawn with a random number that depends on
// the seed and `position` only.
std::int64_t pick(const at::Tensor& logits, const SampleOptions& options, std::int64_t position);

// The new tokens, the same on every rank; calls `on_token` for each. Rank 0 of `world` picks. Stops after a token of
// `ends`. Collective.
std::vector<std::int64_t> generate(const Model& model, const dtensor::Communicator& world,
                                   const std::vector<std::int64_t>& prompt, const SampleOptions& options,
                                   const std::vector<std::int64_t>& ends,
                                   const std::function<void(std::int64_t)>& on_token = {});

}  // namespace llm
