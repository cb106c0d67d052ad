// `llm logits`: what the model says about each token of a prompt.
#pragma once

#include "args.h"
#include "model.h"

namespace llm {

// [tokens, vocabulary] on every rank, in the model's dtype. Collective.
at::Tensor logits_of(const Model& model, const std::vector<std::int64_t>& tokens);

// One tensor as a safetensors file. Throws UsageError where it cannot be written.
void write_safetensors(const std::string& path, const std::string& name, const at::Tensor& tensor);

// Ids that the model has and that fit its positions; a UsageError with the number otherwise.
void check_tokens(const Family& family, const std::vector<std::int64_t>& tokens, std::int64_t more = 0);

}  // namespace llm
