// Tables of tensor names for each family of models.
#pragma once

#include <string>

#include "dtensor/checkpoint.h"
#include "dtensor/nn/decoder.h"

namespace llm {

// Names of models like Llama; other families have additional rows before these.
dtensor::StateDictKeyMapping llama_names();
dtensor::StateDictKeyMapping gemma_names();  // Four norms per layer.
dtensor::StateDictKeyMapping mixtral_names();
dtensor::StateDictKeyMapping qwen3_moe_names();
dtensor::StateDictKeyMapping deepseek_v3_names(const dtensor::nn::DecoderConfig& config);
// `prefix`: "transformer." as transformers writes it, or "" as in older folders.
dtensor::StateDictKeyMapping gpt2_names(const dtensor::nn::DecoderConfig& config, const std::string& prefix);

}  // namespace llm
