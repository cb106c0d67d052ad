// Rotary positions of config.json, in the formats before and after transformers 5.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "dtensor/nn.h"

namespace llm {

// The value, or `otherwise` if it is missing or null.
template <class T>
T value_or(const nlohmann::json& j, const char* key, T otherwise) {
  const auto it = j.find(key);
  return it == j.end() || it->is_null() ? otherwise : it->template get<T>();
}

// `kind`: the kind of layers, if they differ ("full_attention", "sliding_attention"). Throws UsageError for an unknown
// scaling.
dtensor::nn::RopeOptions rope_of(const nlohmann::json& config, std::int64_t head_size, const std::string& kind = "");

}  // namespace llm
