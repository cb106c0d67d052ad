// A HuggingFace folder as a model of the library: its configuration and the table of its family's names.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "dtensor/checkpoint.h"
#include "dtensor/nn/decoder.h"

namespace llm {

struct Family {
  std::string name;  // model_type of config.json.
  dtensor::nn::DecoderConfig config;
  dtensor::StateDictKeyMapping names;
  std::vector<std::int64_t> end_tokens;  // End-of-text tokens; may be empty.
  std::int64_t max_positions = 0;
  // The feature that the decoder does not compute as the model does, although its tensors have the same sizes. Empty:
  // none. Only `plan` accepts such a family.
  std::string plan_only;
};

// Reads FOLDER/config.json and, if it exists, generation_config.json. Throws UsageError with the path and what is
// missing or unsupported.
Family read_family(const std::string& folder);

}  // namespace llm
