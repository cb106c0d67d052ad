// Rotary positions as config.json tells them, in the words of its releases before and after 5.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "dtensor/nn.h"

namespace llm {

// The value, or `otherwise` where it is missing or null.
template <class T>
T value_or(const nlohmann::json& j, const char* key, T otherwise) {
  const auto it = j.find(key);
  return it == j.end() || it->is_null() ? otherwise : it->template get<T>();
}

// `kind`: of the layers that it is for, where they differ ("full_attention", "sliding_attention"). Throws UsageError
// for a scaling that is not known.
dtensor::nn::RopeOptions rope_of(const nlohmann::json& config, std::int64_t head_size, const std::string& kind = "");

}  // namespace llm
