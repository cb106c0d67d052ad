// `llm logits`: the model's logits for each token of a prompt.
#pragma once

#include "llm/args.h"
#include "llm/model.h"

namespace llm {

// [tokens, vocabulary] on every rank, in the model's dtype. Collective.
at::Tensor logits_of(const Model& model, const std::vector<std::int64_t>& tokens);

// Writes one tensor as a safetensors file. Throws UsageError if it cannot be written.
void write_safetensors(const std::string& path, const std::string& name, const at::Tensor& tensor);

// Throws UsageError for ids that the model does not have, or if the ids and `more` tokens exceed its positions.
void check_tokens(const Family& family, const std::vector<std::int64_t>& tokens, std::int64_t more = 0);

}  // namespace llm
