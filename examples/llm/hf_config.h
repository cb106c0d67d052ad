// A HuggingFace folder as a model of ours: the configuration, and the table of names that its family has.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "dtensor/checkpoint.h"
#include "dtensor/nn/decoder.h"

namespace llm {

struct Family {
  std::string name;  // config.json's model_type
  dtensor::nn::DecoderConfig config;
  dtensor::StateDictKeyMapping names;
  std::vector<std::int64_t> end_tokens;  // that end a text; none is fine
  std::int64_t max_positions = 0;
};

// Reads FOLDER/config.json (and generation_config.json, where it is there). Throws UsageError with the path and what is
// missing or not served.
Family read_family(const std::string& folder);

}  // namespace llm
