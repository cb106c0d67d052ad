// The tables: what each family of models calls its tensors.
#pragma once

#include <string>

#include "dtensor/checkpoint.h"
#include "dtensor/nn/decoder.h"

namespace llm {

// Names of Llama's kind; families differ in rows that come before these.
dtensor::StateDictKeyMapping llama_names();
dtensor::StateDictKeyMapping gemma_names();  // four norms a layer
dtensor::StateDictKeyMapping mixtral_names();
dtensor::StateDictKeyMapping qwen3_moe_names();
dtensor::StateDictKeyMapping deepseek_v3_names(const dtensor::nn::DecoderConfig& config);
// `prefix`: "transformer." as transformers writes it, or "" as the first folders have it.
dtensor::StateDictKeyMapping gpt2_names(const dtensor::nn::DecoderConfig& config, const std::string& prefix);

}  // namespace llm
