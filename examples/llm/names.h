// The tables: what each family of models calls its tensors.
#pragma once

#include <string>

#include "dtensor/nn/decoder.h"
#include "dtensor/stored_names.h"

namespace llm {

// Names of Llama's kind; families differ in rows that come before these.
dtensor::StoredNames llama_names();
dtensor::StoredNames gemma_names();  // four norms a layer
dtensor::StoredNames mixtral_names();
dtensor::StoredNames qwen3_moe_names();
dtensor::StoredNames deepseek_v3_names(const dtensor::nn::DecoderConfig& config);
// `prefix`: "transformer." as transformers writes it, or "" as the first folders have it.
dtensor::StoredNames gpt2_names(const dtensor::nn::DecoderConfig& config, const std::string& prefix);

}  // namespace llm
